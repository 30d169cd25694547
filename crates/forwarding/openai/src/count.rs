//! Token counting for answers without a reported usage.

/// An estimate of the tokens in a text. Never exact for a model with another vocabulary than o200k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Estimate(pub u64);

/// The ratio of a model's tokens to o200k tokens, in millionths; 1,000,000 means equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabularyFactor {
    /// Tokens of the model for every million tokens of o200k.
    pub ppm: u32,
}

impl Default for VocabularyFactor {
    fn default() -> Self {
        Self { ppm: 1_000_000 }
    }
}

/// Counts the tokens of `text` with o200k, times the model's factor, rounded up.
///
/// Time is linear in the length of the text, 10 to 70 ms for a megabyte: call on a thread that may block. The first call loads the
/// vocabulary; see [`load`].
pub fn tokens(text: &str, factor: VocabularyFactor) -> Estimate {
    let counted = bpe_openai::o200k_base().count(text) as u128;
    let scaled = (counted * u128::from(factor.ppm)).div_ceil(1_000_000);
    Estimate(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// Loads the vocabulary, which takes about 0.1 s once per process.
pub fn load() {
    bpe_openai::o200k_base();
}
