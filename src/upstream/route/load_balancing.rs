//! Load balancing among candidates: weighted random or least busy. A set of candidates is the bits of a word, without allocation.

/// A set of up to 64 candidates, as positions in a list.
pub(in crate::upstream) type CandidateSet = u64;

/// The maximum length of a list.
pub(super) const CANDIDATES_MAX: usize = 64;

/// The members of a set with a weight, or every member if all weights are zero. A weight of zero marks a standby that serves only when no
/// other can.
fn with_weight(set: CandidateSet, weight: impl Fn(usize) -> u32) -> CandidateSet {
    let weighted = members(set).fold(0, |weighted, at| {
        weighted | (u64::from(weight(at) > 0) << at)
    });
    if weighted == 0 { set } else { weighted }
}

/// The positions of a set, lowest first.
pub(super) fn members(mut set: CandidateSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = set.trailing_zeros() as usize;
        // The lowest bit of an empty set stays empty.
        set &= set.wrapping_sub(1);
        (at < CANDIDATES_MAX).then_some(at)
    })
}

/// A weighted random member of a set. `draw` is a random word.
pub(super) fn weighted(
    set: CandidateSet,
    weight: impl Fn(usize) -> u32,
    draw: u64,
) -> Option<usize> {
    let set = with_weight(set, &weight);
    // Members without a weight share equally.
    let share = |at| u64::from(weight(at).max(1));
    let total: u64 = members(set).map(share).sum();
    let mut left = draw.checked_rem(total)?;
    members(set).find(|&at| {
        let own = share(at);
        let found = left < own;
        left = left.wrapping_sub(own);
        found
    })
}

/// The member of a set with the fewest calls under way for its weight; `draw` breaks ties.
pub(super) fn least_busy(
    set: CandidateSet,
    weight: impl Fn(usize) -> u32,
    busy: impl Fn(usize) -> u32,
    draw: u64,
) -> Option<usize> {
    let set = with_weight(set, &weight);
    let load = |at| (u64::from(busy(at)), u64::from(weight(at).max(1)));
    // a/b < c/d without a division. The counts of calls under way change meanwhile, so each is read once.
    let mut best: Option<(usize, (u64, u64))> = None;
    let mut equals = 0;
    for at in members(set) {
        let own = load(at);
        let order = best.map_or(std::cmp::Ordering::Less, |(_, best)| {
            (own.0 * best.1).cmp(&(best.0 * own.1))
        });
        match order {
            std::cmp::Ordering::Less => {
                best = Some((at, own));
                equals = 1;
            }
            std::cmp::Ordering::Equal => {
                equals += 1;
                // The last of n equals is taken with a probability of 1/n, so all have equal probabilities.
                if draw
                    .rotate_left(7 * equals)
                    .is_multiple_of(u64::from(equals))
                {
                    best = Some((at, own));
                }
            }
            std::cmp::Ordering::Greater => {}
        }
    }
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_clock::Entropy;

    use super::*;

    fn draws(count: usize) -> impl Iterator<Item = u64> {
        let entropy = Entropy::seeded(7);
        (0..count).map(move |_| u64::from_le_bytes(entropy.bytes()))
    }

    #[test]
    fn weights_are_kept_to_over_many_draws() {
        //     weights            set      expected share of each, in percent
        check(&[1, 1], 0b11, &[50, 50]);
        check(&[3, 1], 0b11, &[75, 25]);
        check(&[7, 2, 1], 0b111, &[70, 20, 10]);
        check(&[7, 2, 1], 0b110, &[0, 67, 33]);
        check(&[5, 0, 5], 0b111, &[50, 0, 50]);
        check(&[5, 0, 0], 0b110, &[0, 50, 50]);

        fn check(weights: &[u32], set: CandidateSet, percent: &[i64]) {
            const DRAWS: usize = 20_000;
            let mut counts = vec![0i64; weights.len()];
            for draw in draws(DRAWS) {
                let at = weighted(set, |at| weights[at], draw).expect("a member");
                counts[at] += 1;
            }
            for (at, expected) in percent.iter().enumerate() {
                let off = counts[at] - expected * DRAWS as i64 / 100;
                // More than four standard deviations.
                assert!(off.abs() < 300, "{weights:?} {set:b}: {counts:?}");
            }
        }
    }

    #[test]
    fn the_least_busy_for_its_weight_is_taken() {
        //     weights       calls        taken
        check(&[1, 1, 1], &[4, 2, 3], &[1]);
        check(&[1, 1, 1], &[2, 2, 3], &[0, 1]);
        check(&[4, 1], &[7, 2], &[0]);
        check(&[4, 1], &[8, 2], &[0, 1]);
        check(&[0, 1], &[0, 50], &[1]);
        check(&[0, 0], &[1, 1], &[0, 1]);

        fn check(weights: &[u32], busy: &[u32], taken: &[usize]) {
            let all = (1 << weights.len()) - 1;
            let mut seen: Vec<usize> = draws(200)
                .map(|draw| least_busy(all, |at| weights[at], |at| busy[at], draw))
                .map(|at| at.expect("a member"))
                .collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, taken, "{weights:?} {busy:?}");
        }
    }

    proptest! {
        #[test]
        fn only_a_member_of_the_set_is_chosen(set: u64, draw: u64, weights in prop::collection::vec(0u32..1000, 64), busy in prop::collection::vec(0u32..1000, 64)) {
            let chosen = [
                weighted(set, |at| weights[at], draw),
                least_busy(set, |at| weights[at], |at| busy[at], draw),
            ];
            for at in chosen {
                prop_assert_eq!(at.is_some(), set != 0);
                if let Some(at) = at {
                    prop_assert!(set >> at & 1 == 1);
                    prop_assert!(weights[at] > 0 || members(set).all(|other| weights[other] == 0));
                }
            }
        }
    }
}
