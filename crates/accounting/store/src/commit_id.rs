//! The id of a journal row: node, epoch and number of its commit in a single integer, ascending within a node.

/// The layout: seven bits of node, twenty-two of epoch, thirty-four of number.
const NODE: u32 = 56;
const EPOCH: u32 = 34;

/// The greatest possible epoch.
pub(crate) const EPOCH_MAX: i64 = (1 << (NODE - EPOCH)) - 1;

/// The first number of a node with allotments (parts of the accounts' credit). Smaller numbers belong to lone nodes, which have the whole
/// credit.
pub(crate) const FIRST_OF_MANY: i64 = 16;

/// The greatest number of a node: the fencing tokens of idempotency keys have six bits for a cluster node.
pub(crate) const NODE_MAX: i64 = FIRST_OF_MANY + 62;

/// Whether a node belongs to a cluster, with allotments.
pub fn has_allotments(node: i64) -> bool {
    node >= FIRST_OF_MANY
}

/// The id of a commit's row.
pub(crate) fn id(node: i64, epoch: i64, number: i64) -> i64 {
    assert!(
        (0..1 << 7).contains(&node)
            && (0..=EPOCH_MAX).contains(&epoch)
            && (0..1 << EPOCH).contains(&number),
        "commit {number} of node {node}, run {epoch} has no place in the journal"
    );
    node << NODE | epoch << EPOCH | number
}

/// The smallest and the greatest id of a node.
pub(crate) fn range(node: i64) -> (i64, i64) {
    (node << NODE, node << NODE | ((1 << NODE) - 1))
}

/// Node, epoch and number of the commit with an id.
pub(crate) fn numbers(id: i64) -> (i64, i64, i64) {
    let epoch = id >> EPOCH & EPOCH_MAX;
    (id >> NODE, epoch, id & ((1 << EPOCH) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_its_numbers_and_the_order_of_the_commits() {
        let mut last = i64::MIN;
        for key in [
            (1, 1, 1),
            (1, 1, (1 << 34) - 1),
            (1, 2, 0),
            (1, (1 << 22) - 1, 5),
            (127, 1, 1),
            (127, (1 << 22) - 1, (1 << 34) - 1),
        ] {
            let made = id(key.0, key.1, key.2);
            assert_eq!(numbers(made), key);
            assert!(made > last);
            let (first, greatest) = range(key.0);
            assert!((first..=greatest).contains(&made));
            last = made;
        }
    }
}
