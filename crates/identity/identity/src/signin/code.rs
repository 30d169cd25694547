//! One-time codes: unbiased generation, lenient parsing, constant-time comparison.

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Number of digits of a code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodeLength {
    /// Six: with five attempts per code and five codes per hour, a guess succeeds in 2.5 of 100,000 hours.
    Six,
    /// Eight: a hundred times less likely.
    #[default]
    Eight,
}

impl CodeLength {
    /// The number of digits.
    pub fn digits(self) -> usize {
        match self {
            CodeLength::Six => 6,
            CodeLength::Eight => 8,
        }
    }

    /// A uniformly distributed code. `draw` fills a slice with random bytes.
    pub(super) fn draw(self, mut draw: impl FnMut(&mut [u8])) -> Zeroizing<String> {
        let codes = 10u32.pow(self.digits() as u32);
        // Rejection sampling: a plain remainder would favour low codes.
        let fair = u32::MAX - u32::MAX % codes;
        loop {
            let mut bytes = Zeroizing::new([0; 4]);
            draw(&mut *bytes);
            let number = u32::from_le_bytes(*bytes);
            if number < fair {
                let width = self.digits();
                return Zeroizing::new(format!("{:0width$}", number % codes));
            }
        }
    }

    /// Parses user input, with spaces and hyphens between the digits; `None` for a malformed code.
    pub fn read(self, typed: &str) -> Option<Zeroizing<String>> {
        let code: Zeroizing<String> = Zeroizing::new(
            typed
                .chars()
                .filter(|character| !character.is_whitespace() && *character != '-')
                .collect(),
        );
        let sound = code.len() == self.digits() && code.bytes().all(|byte| byte.is_ascii_digit());
        sound.then_some(code)
    }
}

/// Whether two keyed digests are equal, in constant time.
pub(super) fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_are_drawn_with_rejection_sampling() {
        let mut numbers = [u32::MAX, 4_200_000_000, 4_199_999_999].into_iter();
        let code = CodeLength::Eight.draw(|out| {
            let number = numbers.next().expect("drawn at most three times");
            out.copy_from_slice(&number.to_le_bytes());
        });
        assert_eq!(*code, "99999999");
        let code = CodeLength::Six.draw(|out| out.copy_from_slice(&7u32.to_le_bytes()));
        assert_eq!(*code, "000007");
    }

    #[test]
    fn a_code_is_parsed_with_separators() {
        let read = |typed: &str| CodeLength::Eight.read(typed).map(|code| code.to_string());
        for typed in ["12345678", " 1234 5678\n", "1234-5678", "12 34 56 78"] {
            assert_eq!(read(typed).as_deref(), Some("12345678"), "{typed:?}");
        }
        for typed in ["", "1234567", "123456789", "1234567a", "१२३४५६७८"] {
            assert_eq!(read(typed), None, "{typed:?}");
        }
    }

    proptest! {
        #[test]
        fn every_drawn_code_parses_back(number in 0u32..4_200_000_000) {
            let code = CodeLength::Eight.draw(|out| out.copy_from_slice(&number.to_le_bytes()));
            prop_assert_eq!(CodeLength::Eight.read(&code), Some(code));
        }
    }
}
