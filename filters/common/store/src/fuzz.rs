//! Entry point of fuzzing: the decoder of journal rows, called with any bytes.

use crate::journal::Body;

/// The body of a journal row, which may be damaged.
pub fn journal_row(input: &[u8]) {
    let Ok(body) = Body::read(input) else { return };
    let _ = body.note();
    for record in body.records() {
        let Ok(record) = record else { return };
        let _ = (record.operation(), record.account(), record.at());
        let _ = record.is_owner_visible();
        if let Ok(part) = record.part() {
            assert_eq!(part.operation(), record.operation());
            assert_eq!(part.account(), record.account());
        }
    }
}
