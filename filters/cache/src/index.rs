//! Where the answers of a log stand, by key: buckets of one cache line, so that a look in vain touches one.

use crate::key::Key;

/// Bits of a slot that say where.
const PLACE_BITS: u32 = 40;

/// The largest place.
pub(crate) const PLACE_MAX: u64 = (1 << PLACE_BITS) - 1;

/// Slots of a bucket: what a cache line has.
const SLOTS: usize = 8;

/// Bytes of memory of one slot.
pub(crate) const SLOT_BYTES: usize = 8;

/// A slot has 24 bits of the key above the place; zero is empty.
type Bucket = [u64; SLOTS];

/// Places by key. It knows 24 bits of a key and no more: whoever asks compares the key that stands there.
///
/// Places only grow. A full bucket forgets its smallest, and nobody need tell it of places that are no more: they are the smallest soon.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Vec<Bucket>,
}

impl Index {
    /// An index of about so many slots. Memory that has never been written is not used yet.
    pub(crate) fn new(slots: usize) -> Index {
        Index {
            buckets: vec![[0; SLOTS]; (slots / SLOTS).max(1)],
        }
    }

    /// Places that may be this key's.
    pub(crate) fn places(&self, key: &Key) -> impl Iterator<Item = u64> + use<> {
        // A copy, so that whoever looks may change it meanwhile.
        let bucket = self.buckets[self.bucket(key)];
        let tag = tag(key);
        let own = move |&slot: &u64| slot != 0 && slot >> PLACE_BITS == tag;
        bucket.into_iter().filter(own).map(|slot| slot & PLACE_MAX)
    }

    /// Adds a place, which is larger than all before and not zero. The one that is forgotten for it comes back.
    pub(crate) fn insert(&mut self, key: &Key, place: u64) -> Option<u64> {
        let bucket = self.bucket(key);
        let oldest = self.buckets[bucket]
            .iter_mut()
            .min_by_key(|slot| **slot & PLACE_MAX)?;
        let forgotten = *oldest & PLACE_MAX;
        *oldest = tag(key) << PLACE_BITS | place;
        (forgotten != 0).then_some(forgotten)
    }

    /// Removes a place, and says whether it was there.
    pub(crate) fn remove(&mut self, key: &Key, place: u64) -> bool {
        let bucket = self.bucket(key);
        let slot = self.buckets[bucket]
            .iter_mut()
            .find(|slot| **slot == tag(key) << PLACE_BITS | place);
        slot.map(|slot| *slot = 0).is_some()
    }

    /// Whether this place is there.
    pub(crate) fn has(&self, key: &Key, place: u64) -> bool {
        self.buckets[self.bucket(key)].contains(&(tag(key) << PLACE_BITS | place))
    }

    /// Taken from the upper bits of the key's first eight bytes, the tag from the lower: no bit counts twice.
    fn bucket(&self, key: &Key) -> usize {
        let scaled = u128::from(key.lane()) * self.buckets.len() as u128;
        (scaled >> 64) as usize
    }
}

fn tag(key: &Key) -> u64 {
    key.lane() & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    #[test]
    fn what_is_added_is_found_until_its_bucket_is_full_and_then_the_oldest_goes_first() {
        let mut index = Index::new(SLOTS);
        for number in 1..=20 {
            let forgotten = index.insert(&key(number), number);
            assert_eq!(forgotten, number.checked_sub(8).filter(|&gone| gone > 0));
            for other in 1..=20 {
                let there = (number.saturating_sub(7)..=number).contains(&other);
                let found = index.places(&key(other)).any(|place| place == other);
                assert_eq!((found, index.has(&key(other), other)), (there, there));
            }
        }
        assert!(index.remove(&key(15), 15));
        assert!(!index.remove(&key(15), 15), "once");
        assert_eq!(index.places(&key(15)).count(), 0);
        assert_eq!(index.insert(&key(21), 21), None, "in the empty place");
    }

    #[test]
    fn keys_are_spread_over_all_buckets() {
        let mut index = Index::new(64 * SLOTS);
        let mut forgotten = 0;
        for number in 1..=256 {
            forgotten += usize::from(index.insert(&key(number), number).is_some());
        }
        assert!(forgotten < 10, "{forgotten} of 256 keys in 512 places");
    }
}
