//! Entry points of fuzzing: the decoders of journal rows, of the spool and of export files, called with any bytes.

use std::io::Cursor;
use std::path::Path;

use crate::export::ExportReader;
use crate::journal::Body;
use crate::spool;

/// The body of a journal row, perhaps damaged.
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

/// The spool of an ended run: the input as the file's head and frames, and as the content of a frame with a valid checksum.
pub fn spool(input: &[u8]) {
    spool::fuzz(input);
}

/// An export file: its content, compressed and uncompressed.
pub fn export(input: &[u8]) {
    let path = Path::new("input.journal.zst");
    let whole = Cursor::new(input.to_owned());
    let mut readers = vec![ExportReader::of(path, Box::new(whole.clone()))];
    if let Ok(decoder) = zstd::stream::read::Decoder::new(whole) {
        readers.push(ExportReader::of(path, Box::new(decoder)));
    }
    for reader in readers {
        let Ok(mut reader) = reader else { continue };
        while let Ok(Some(commit)) = reader.next() {
            journal_row(&commit.body);
        }
    }
}
