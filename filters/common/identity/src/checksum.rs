//! CRC-32 as in Ethernet and zip (IEEE 802.3): reflected, polynomial `0xedb88320`.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = (rest >> 1) ^ (0xedb8_8320 & (rest & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// A checksum over the bytes so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc32(u32);

impl Crc32 {
    /// The checksum over nothing.
    pub(crate) const fn new() -> Crc32 {
        Crc32(u32::MAX)
    }

    /// The checksum over what came before, and then `bytes`.
    pub(crate) fn then(self, bytes: &[u8]) -> Crc32 {
        Crc32(bytes.iter().fold(self.0, |rest, &byte| {
            TABLE[usize::from(rest as u8 ^ byte)] ^ (rest >> 8)
        }))
    }

    /// The checksum itself.
    pub(crate) const fn value(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard_comes_out() {
        assert_eq!(Crc32::new().then(b"123456789").value(), 0xcbf4_3926);
        assert_eq!(
            Crc32::new().then(b"1234").then(b"56789").value(),
            0xcbf4_3926
        );
        assert_eq!(Crc32::new().value(), 0);
    }
}
