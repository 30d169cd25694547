//! The version of a price, derived from its content.

use tollgate_money::Price;

/// Bits of a version: exact in every JSON reader.
const BITS: u32 = 53;

/// The version of a model's price, derived from its content.
///
/// The first 53 bits of a hash over the model's id and three amounts; never negative. The version depends on the price of this model alone:
/// equal on every start and every node, and back when the price returns. A counter would need storage and would change with every edit of
/// the file.
pub(super) fn version(model: &str, price: &Price) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(model.len() as u64).to_le_bytes());
    hasher.update(model.as_bytes());
    for amount in [
        price.input.per_million(),
        price.output.per_million(),
        price.request,
    ] {
        hasher.update(&amount.get().to_le_bytes());
    }
    let hash = hasher.finalize();
    let head: [u8; 8] = hash.as_bytes()[..8]
        .try_into()
        .expect("a hash has more than eight bytes");
    (u64::from_le_bytes(head) >> (64 - BITS)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_depends_on_model_and_price_alone() {
        let price = |input: &str, output: &str, request: &str| Price {
            input: input.parse().expect("a price"),
            output: output.parse().expect("a price"),
            request: request.parse().expect("an amount"),
        };
        let first = version("a", &price("0.15", "0.6", "0"));
        assert!((0..1 << BITS).contains(&first), "{first} is exact in JSON");
        assert_eq!(first, version("a", &price("0.150", "0.60", "0")));
        for other in [
            version("b", &price("0.15", "0.6", "0")),
            version("a", &price("0.16", "0.6", "0")),
            version("a", &price("0.15", "0.61", "0")),
            version("a", &price("0.15", "0.6", "0.001")),
            version("a", &price("0.6", "0.15", "0")),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn a_version_is_the_same_in_every_release() {
        let price = Price {
            input: "0.15".parse().expect("a price"),
            output: "0.6".parse().expect("a price"),
            request: "0".parse().expect("an amount"),
        };
        assert_eq!(
            version("demo-small", &price),
            2_412_810_720_569_511,
            "ledger rows contain it"
        );
    }
}
