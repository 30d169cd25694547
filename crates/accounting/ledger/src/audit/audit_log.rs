//! The chain of the audit log: each record follows the previous record of its node.

use std::collections::BTreeMap;

use tollgate_store::AuditRecord;

/// Number and hash of the last record of each node.
#[derive(Default)]
pub(crate) struct AuditLogChain {
    last: BTreeMap<i64, (i64, [u8; 32])>,
}

impl AuditLogChain {
    /// The violation of a record, if any. Records are passed in the order of node and number.
    pub(crate) fn next(&mut self, record: &AuditRecord) -> Option<String> {
        let AuditRecord { node, number, .. } = *record;
        let last = self.last.insert(node, (number, record.hash));
        let (before, previous) = last.unwrap_or_default();
        let name = format!("record {number} of node {node} in the audit log");
        if number != before + 1 {
            return Some(format!("{name} is the first after record {before}"));
        }
        if record.previous != previous {
            return Some(format!("{name} does not follow the one before it"));
        }
        (!record.is_intact()).then(|| format!("{name} was changed after it was written"))
    }
}
