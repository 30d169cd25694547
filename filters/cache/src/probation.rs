//! Answers that nobody has asked for again yet, which is what most of them stay.
//!
//! As in S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023), what is new stands in a queue of its own
//! and goes on to the main part of the shelf only when it is asked for a second time: a flood passes through here. This queue is a log in
//! segments of fixed size. An answer is written behind the last one, and when there is no room, the oldest segment is emptied as a whole
//! and becomes the newest, so that nothing is allocated for an answer, and to forget one touches none of its memory.
//!
//! An [`Index`] beside it tells where answers stand. It is not told when a segment goes: a place in front of the oldest segment is
//! recognized by its number. Until it is written over it tells that its key was here before, which is the paper's ghost queue: an answer
//! that comes a second time goes to the main part at once.
//!
//! Memory that is seldom touched is slow: to look in vain into an index for sixteen megabytes takes 0.16 us, for one megabyte 0.06.
//! So a queue that was passed through twice while nobody asked for what was old in it, and nothing came again after it had gone, is short
//! from then on, with a short index, until something comes again: of what its index has forgotten, a [`Sample`] tells.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use crate::entry::Entry;
use crate::flat::{Flat, UNIT};
use crate::index::{Index, PLACE_MAX, SLOT_BYTES};
use crate::key::Key;
use crate::sample::{ONE_IN, Sample};

/// The largest segment. Larger ones would make no difference but to how much goes at once.
const SEGMENT_BYTES_MAX: usize = 1 << 20;

/// There is a slot of the index for so many bytes of answers: two for an ordinary answer, so that as many are remembered as are there.
const BYTES_PER_SLOT: usize = 512;

/// Segments of a queue that is short.
const SHORT: usize = 2;

/// What of the index a queue that is short has: it remembers several times more than is there.
const SHORT_INDEX: usize = 8;

/// One queue with its index.
#[derive(Debug)]
pub(crate) struct Probation {
    index: Index,
    sample: Sample,
    segments: VecDeque<Segment>,
    /// The number of the oldest segment.
    first: u64,
    sizes: Sizes,
    segments_max: usize,
    /// Whether it has been of no use that it is longer.
    short: bool,
    /// The number of the newest segment when it was last of use, or would have been.
    of_use: u64,
    /// Answers that can be found.
    live: usize,
}

/// How a queue's room is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Bytes of a segment, a power of two.
    pub(crate) segment: usize,
    /// Bytes of the index.
    pub(crate) index: usize,
}
#[derive(Debug)]
struct Segment {
    /// Runs, one behind the other, and what was here before.
    log: Box<[u8]>,
    /// Bytes of runs.
    used: usize,
    /// Those of them that can be found.
    live: usize,
    /// When the first and the last of them are out of date.
    expires: (Duration, Duration),
}

/// What became of an answer that was to be kept here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is here. Others have gone for it, so many.
    Here { evicted: usize },
    /// It belongs in the main part: it is large, or has been here before. One of its key was still here, and is gone: so many.
    Beyond { evicted: usize },
}

impl Sizes {
    /// For a queue that has `room` bytes with its index, if all of them are its own.
    pub(crate) fn new(room: usize) -> Sizes {
        // Thirty segments and more: one is being filled, one has just gone, and that is all that is ever unused.
        let segment = (room / 32).clamp(UNIT, SEGMENT_BYTES_MAX);
        Sizes {
            segment: 1 << segment.ilog2(),
            index: room / BYTES_PER_SLOT * SLOT_BYTES,
        }
    }

    /// Bytes beside the segments: the index, and of as many keys the sample.
    pub(crate) fn beside(self) -> usize {
        self.index + self.index.div_ceil(ONE_IN)
    }
}

impl Probation {
    /// An empty queue of at most so many segments.
    pub(crate) fn new(sizes: Sizes, segments_max: usize) -> Probation {
        Probation {
            index: Index::new(sizes.index / SLOT_BYTES),
            sample: Sample::new(sizes.index / SLOT_BYTES),
            segments: VecDeque::new(),
            // Zero is no place.
            first: 1,
            sizes,
            segments_max,
            short: false,
            of_use: 1,
            live: 0,
        }
    }

    /// Puts an answer behind the others, in place of an earlier one of its key.
    pub(crate) fn put(&mut self, key: &Key, flat: &Flat<'_>) -> Put {
        let mut evicted = 0;
        let mut known = self.sample.comes_again(key);
        for place in self.index.places(key) {
            match self.at(place) {
                None => known |= self.index.remove(key, place),
                Some((other, _)) if other == *key => {
                    evicted += self.forget(key, place);
                    // It has not gone.
                    known = false;
                }
                Some(_) => {}
            }
        }
        if known {
            evicted += self.was_of_use();
        }
        let bytes = flat.bytes();
        // Larger ones would leave too much of a segment unused.
        if known || bytes > self.sizes.segment / 4 {
            return Put::Beyond { evicted };
        }
        let full = |last: &Segment| last.used + bytes > last.log.len();
        if self.segments.back().is_none_or(full) {
            evicted += self.begin_segment();
        }
        let number = self.newest();
        let Some(last) = self.segments.back_mut() else {
            return Put::Beyond { evicted };
        };
        let offset = last.used;
        let run = last.log.get_mut(offset..offset + bytes);
        if !run.is_some_and(|run| flat.write(key, run)) {
            return Put::Beyond { evicted };
        }
        last.used += bytes;
        last.live += 1;
        let (first, latest) = last.expires;
        last.expires = (first.min(flat.expires), latest.max(flat.expires));
        self.live += 1;
        let place = number << self.shift() | (offset / UNIT) as u64;
        if let Some(forgotten) = self.index.insert(key, place) {
            evicted += self.lose(forgotten);
        }
        Put::Here { evicted }
    }

    /// Takes the answer of a key out.
    pub(crate) fn take(&mut self, key: &Key) -> Option<Entry> {
        for place in self.index.places(key) {
            if let Some((_, flat)) = self.at(place).filter(|(other, _)| other == key) {
                let entry = flat.entry();
                self.forget(key, place);
                if (place >> self.shift()) + (SHORT as u64) <= self.newest() {
                    self.of_use = self.newest();
                }
                return Some(entry);
            }
        }
        None
    }

    /// Removes the answers that `gone` says, and tells how many.
    pub(crate) fn remove(&mut self, gone: impl Fn(&Flat<'_>) -> bool) -> usize {
        let removed = (0..self.segments.len())
            .map(|at| self.remove_from(at, &gone))
            .sum();
        while self.segments.front().is_some_and(|oldest| oldest.live == 0) {
            self.end_segment();
        }
        removed
    }

    /// Removes what is out of date, and tells how many.
    pub(crate) fn sweep(&mut self, now: Duration) -> usize {
        let mut removed = 0;
        // In about the order in which they came: whole segments, and then a part of one.
        while self
            .segments
            .front()
            .is_some_and(|oldest| oldest.expires.1 <= now)
        {
            removed += self.end_segment().map_or(0, |gone| gone.live);
        }
        for at in 0..self.segments.len() {
            if self.segments[at].expires.0 <= now {
                removed += self.remove_from(at, &|flat| flat.expires <= now);
            }
        }
        removed
    }

    /// Sets how many segments there may be, and tells how many answers had to go for it.
    pub(crate) fn give(&mut self, segments_max: usize) -> usize {
        self.segments_max = segments_max;
        let mut evicted = 0;
        while self.segments.len() > segments_max {
            evicted += self.end_segment().map_or(0, |gone| gone.live);
        }
        evicted
    }

    /// How many answers there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Bytes that have been written, those of answers that are gone from between others with them.
    pub(crate) fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.used).sum()
    }

    /// What stands at a place, if that is still there.
    fn at(&self, place: u64) -> Option<(Key, Flat<'_>)> {
        let segment = self.segments.get(self.segment(place)?)?;
        let offset = (place & ((1 << self.shift()) - 1)) as usize * UNIT;
        Flat::read(segment.runs().get(offset..)?)
    }

    /// Which of the segments a place is in.
    fn segment(&self, place: u64) -> Option<usize> {
        let at = (place >> self.shift()).checked_sub(self.first)?;
        usize::try_from(at).ok()
    }

    /// Bits of a place that say where in its segment.
    fn shift(&self) -> u32 {
        (self.sizes.segment / UNIT).ilog2()
    }

    /// Makes an answer one that cannot be found.
    fn forget(&mut self, key: &Key, place: u64) -> usize {
        match self.index.remove(key, place) {
            true => self.lose(place),
            false => 0,
        }
    }

    /// Counts for a place of which the index knows no more: one answer less, if it was still there.
    fn lose(&mut self, place: u64) -> usize {
        let at = self.segment(place);
        let Some(segment) = at.and_then(|at| self.segments.get_mut(at)) else {
            return 0;
        };
        segment.live -= 1;
        self.live -= 1;
        1
    }

    /// The number of the newest segment.
    fn newest(&self) -> u64 {
        self.first + self.segments.len() as u64 - 1
    }

    /// Notes that an answer has come again after it had gone: a longer queue would have had it. Tells how many answers had to go.
    fn was_of_use(&mut self) -> usize {
        self.of_use = self.newest();
        match std::mem::take(&mut self.short) {
            true => self.index_anew(self.first),
            false => 0,
        }
    }

    /// Makes an empty segment the newest, and tells how many answers had to go for it.
    fn begin_segment(&mut self) -> usize {
        let mut evicted = 0;
        let full = self.segments.len() >= self.segments_max;
        // Once to fill it, and once for what was in it to be asked for.
        let passed = self.newest() >= self.of_use + 2 * self.segments_max as u64;
        let shortens = full && passed && !self.short;
        self.short |= shortens;
        let segments_max = match self.short {
            true => SHORT.min(self.segments_max),
            false => self.segments_max,
        };
        let mut room = None;
        while !self.segments.is_empty() && self.segments.len() >= segments_max {
            room = self.end_segment();
            evicted += room.as_ref().map_or(0, |gone| gone.live);
        }
        // Places have to grow, and there are no larger ones: after some seventy terabytes.
        let used_up = self.newest() >= PLACE_MAX >> self.shift();
        if shortens || used_up {
            evicted += self.index_anew(if used_up { 1 } else { self.first });
        }
        let fresh = || vec![0; self.sizes.segment].into();
        self.segments.push_back(Segment {
            log: room.map_or_else(fresh, |gone| gone.log),
            used: 0,
            live: 0,
            expires: (Duration::MAX, Duration::ZERO),
        });
        evicted
    }

    /// Makes another index of what is there, with `first` for the number of the oldest segment. What has gone before is forgotten. Tells
    /// how many answers found no place in it.
    fn index_anew(&mut self, first: u64) -> usize {
        let shift = self.shift();
        let slots = self.sizes.index / SLOT_BYTES;
        let slots = if self.short {
            slots / SHORT_INDEX
        } else {
            slots
        };
        let before = std::mem::replace(&mut self.index, Index::new(slots));
        let (former, mut forgotten) = (std::mem::replace(&mut self.first, first), Vec::new());
        for (at, segment) in self.segments.iter().enumerate() {
            for (offset, key, _) in Flat::runs(segment.runs()) {
                let place = |first: u64| (first + at as u64) << shift | (offset / UNIT) as u64;
                if before.has(&key, place(former)) {
                    forgotten.extend(self.index.insert(&key, place(first)));
                }
            }
        }
        self.of_use = self.newest();
        forgotten.into_iter().map(|place| self.lose(place)).sum()
    }

    /// Lets the oldest segment go with all that is in it.
    fn end_segment(&mut self) -> Option<Segment> {
        let gone = self.segments.pop_front()?;
        self.first += 1;
        self.live -= gone.live;
        Some(gone)
    }

    fn remove_from(&mut self, at: usize, gone: &impl Fn(&Flat<'_>) -> bool) -> usize {
        let shift = self.shift();
        let number = self.first + at as u64;
        let segment = &mut self.segments[at];
        let mut removed = 0;
        let mut expires = (Duration::MAX, Duration::ZERO);
        for (offset, key, flat) in Flat::runs(segment.runs()) {
            let place = number << shift | (offset / UNIT) as u64;
            if !gone(&flat) {
                expires = (expires.0.min(flat.expires), expires.1.max(flat.expires));
            } else if self.index.remove(&key, place) {
                removed += 1;
            }
        }
        segment.expires = expires;
        segment.live -= removed;
        self.live -= removed;
        removed
    }
}

impl Segment {
    fn runs(&self) -> &[u8] {
        &self.log[..self.used]
    }
}
