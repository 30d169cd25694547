//! One key in so many, remembered for as long as the whole room would hold its answer.
//!
//! A queue that is kept short forgets soon what was in it, and would not notice when answers begin to come again after a longer time. A
//! small part of the keys tells: those that some bits of their digest choose, which is a fair choice of all.

use crate::key::Key;

/// Of so many keys one is remembered.
pub(crate) const ONE_IN: usize = 64;

/// The keys that are remembered. A key is in the place that its digest says until another of the same place comes.
#[derive(Debug)]
pub(crate) struct Sample {
    /// A word of each key's digest; zero for none.
    words: Box<[u64]>,
}

impl Sample {
    /// A sample of so many keys.
    pub(crate) fn new(keys: usize) -> Sample {
        Sample {
            words: vec![0; keys.div_ceil(ONE_IN)].into(),
        }
    }

    /// Remembers a key if it is one of the sample, and tells whether it was here before.
    pub(crate) fn comes_again(&mut self, key: &Key) -> bool {
        // Not the bits by which the index goes.
        let [.., a, b, c, d, e, f, g, h] = key.0;
        let word = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        if !word.is_multiple_of(ONE_IN as u64) || word == 0 {
            return false;
        }
        let at = word / ONE_IN as u64 % self.words.len() as u64;
        std::mem::replace(&mut self.words[at as usize], word) == word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Key(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    #[test]
    fn a_part_of_what_comes_again_is_noticed_and_nothing_else() {
        const KEYS: u32 = 100_000;
        let mut sample = Sample::new(KEYS as usize);
        let again = |sample: &mut Sample, numbers: std::ops::Range<u32>| {
            numbers.filter(|&n| sample.comes_again(&key(n))).count()
        };
        assert_eq!(again(&mut sample, 0..KEYS), 0, "all are new");
        let noticed = again(&mut sample, 0..KEYS);
        // Some are in the place of others.
        let all = KEYS as usize / ONE_IN;
        assert!((all / 3..all).contains(&noticed), "{noticed} of {all}");
        assert_eq!(again(&mut sample, KEYS..20 * KEYS), 0, "new ones");
        let left = again(&mut sample, 0..KEYS);
        assert!(left < all / 20, "{left} are remembered after a flood");
    }
}
