//! LRU order of connections: finds the connection idle for the longest, in amortized logarithmic time and without a step at the begin or
//! the end of a request.
//!
//! Connections are ordered by times, each at most the start of the idle time. The first connection is asked for its state. If used
//! meanwhile, the connection is put back at the true place. So the use of a connection costs at most one move, and only in a search for an
//! idle connection. (A scan would take time in proportion to all open connections for each connection of a flood.)

use std::collections::{BTreeSet, HashMap};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// Idle since this time, possibly in the future.
    Idle(u64),
    /// A request is under way.
    Busy,
}

/// Connections by number.
#[derive(Debug, Default)]
pub(super) struct IdleOrder {
    order: BTreeSet<(u64, u64)>,
    /// The time of each connection in the order.
    times: HashMap<u64, u64>,
}

impl IdleOrder {
    /// Adds a connection, idle since `since` at the earliest.
    pub(super) fn insert(&mut self, number: u64, since: u64) {
        self.remove(number);
        self.order.insert((since, number));
        self.times.insert(number, since);
    }

    /// Removes a connection, if present.
    pub(super) fn remove(&mut self, number: u64) {
        if let Some(since) = self.times.remove(&number) {
            self.order.remove(&(since, number));
        }
    }

    /// The connection idle for the longest at `now`, if any. The connection stays in the order.
    pub(super) fn longest_idle(
        &mut self,
        now: u64,
        activity: impl Fn(u64) -> Activity,
    ) -> Option<u64> {
        loop {
            let (known, number) = *self.order.first()?;
            if known > now {
                return None;
            }
            match activity(number) {
                Activity::Idle(since) if since <= known => return Some(number),
                Activity::Idle(since) => self.insert(number, since),
                Activity::Busy => self.insert(number, now + 1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Open,
        Use(usize),
        Rest(usize),
        Close(usize),
        Find,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Open),
            (0..8usize).prop_map(Event::Use),
            (0..8usize).prop_map(Event::Rest),
            (0..8usize).prop_map(Event::Close),
            Just(Event::Find),
        ]
    }

    proptest! {
        #[test]
        fn the_longest_idle_connection_is_the_one_that_a_scan_finds(events in prop::collection::vec(event(), 0..100)) {
            let mut order = IdleOrder::default();
            let mut open: Vec<(u64, Activity)> = Vec::new();
            for (now, event) in (10..).zip(events) {
                match event {
                    Event::Open => {
                        order.insert(now, now);
                        open.push((now, Activity::Idle(now)));
                    }
                    Event::Use(at) if at < open.len() => open[at].1 = Activity::Busy,
                    // A connection counts as idle some time after the request.
                    Event::Rest(at) if at < open.len() => open[at].1 = Activity::Idle(now + 3),
                    Event::Close(at) if at < open.len() => order.remove(open.swap_remove(at).0),
                    Event::Find => {
                        let idle = open.iter().filter_map(|(number, activity)| match activity {
                            Activity::Idle(since) if *since <= now => Some((*since, *number)),
                            Activity::Idle(_) | Activity::Busy => None,
                        });
                        let scanned = idle.min().map(|(_, number)| number);
                        let state = |number| open.iter().find(|one| one.0 == number).expect("open").1;
                        prop_assert_eq!(order.longest_idle(now, state), scanned);
                    }
                    _ => {}
                }
                prop_assert_eq!(order.order.len(), open.len());
            }
        }
    }

    #[test]
    fn connections_that_stay_busy_are_asked_once_in_a_search_and_idle_ones_behind_them_are_found() {
        let mut order = IdleOrder::default();
        (0..1_000).for_each(|number| order.insert(number, number));
        let asked = std::cell::Cell::new(0);
        let mut find = |now| {
            asked.set(0);
            let state = |number| {
                asked.set(asked.get() + 1);
                if number == 999 {
                    Activity::Idle(999)
                } else {
                    Activity::Busy
                }
            };
            (order.longest_idle(now, state), asked.get())
        };
        assert_eq!(find(2_000), (Some(999), 1_000));
        assert_eq!(find(2_000), (Some(999), 1));
    }
}
