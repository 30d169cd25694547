//! Usage as CSV (RFC 4180).

use std::fmt::Write as _;

use tollgate_openai::Family;
use tollgate_store::{UsageFlags, UsageRow};

/// Requests as comma-separated values (RFC 4180), with a header row. `key` names the credential of a request.
///
/// Names are untrusted. Spreadsheets evaluate text as a formula after certain first characters (CSV injection), so an apostrophe precedes
/// such text.
pub(crate) fn csv<'a>(rows: &[UsageRow], key: impl Fn(&UsageRow) -> &'a str) -> String {
    let mut text = String::with_capacity(160 * (rows.len() + 1));
    text.push_str(
        "time,request_id,endpoint,model,key,tokens_in,tokens_out,result,from_cache,estimated,credits\r\n",
    );
    for row in rows {
        let usage = &row.usage;
        let yes = |flag| {
            if usage.flags.contains(flag) {
                "yes"
            } else {
                "no"
            }
        };
        let endpoint =
            Family::stored_as(usage.endpoint.code()).map_or("", |family| family.usage_label);
        let result = if usage.flags.contains(UsageFlags::INCOMPLETE) {
            "cut off"
        } else {
            "done"
        };
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{},{},{endpoint},", row.at.rfc3339(), row.operation);
        field(&mut text, &usage.model);
        text.push(',');
        field(&mut text, key(row));
        let _ = write!(
            text,
            ",{},{},{result},{},{},{}\r\n",
            usage.prompt_tokens,
            usage.completion_tokens,
            yes(UsageFlags::CACHE_HIT),
            yes(UsageFlags::ESTIMATED),
            row.cost,
        );
    }
    text
}

/// Writes untrusted text as one field.
fn field(out: &mut String, text: &str) {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '|', '%'])
        || text.starts_with(['\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}']);
    let mark = if is_formula { "'" } else { "" };
    if text.contains(['"', ',', '\r', '\n', ';', '\t']) {
        let _ = write!(out, "\"{mark}{}\"", text.replace('"', "\"\""));
    } else {
        let _ = write!(out, "{mark}{text}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use tollgate_clock::Timestamp;

    use proptest::prelude::*;
    use tollgate_money::{AccountId, Micros, OperationId};
    use tollgate_store::{Endpoint, UsageRecord};

    use super::*;

    fn row(model: &str, flags: UsageFlags) -> UsageRow {
        UsageRow {
            operation: OperationId::from_bytes([1; 16]),
            account: AccountId::from_bytes([2; 16]),
            usage: UsageRecord {
                credential: None,
                endpoint: Endpoint::Chat,
                model: Arc::from(model),
                upstream: None,
                prompt_tokens: 12,
                completion_tokens: 34,
                flags,
                http_status: 200,
                ttfb_us: None,
                total_us: None,
            },
            cost: Micros::new(5_600),
            written_off: Micros::ZERO,
            price_version: None,
            at: Timestamp::from_secs(1_795_269_731),
        }
    }

    #[test]
    fn a_request_is_one_line() {
        let rows = [
            row("small", UsageFlags::NONE),
            row("a,\"b\"", UsageFlags::CACHE_HIT | UsageFlags::ESTIMATED),
            row("=HYPERLINK(1)", UsageFlags::INCOMPLETE),
        ];
        let text = csv(&rows, |_| "-ci, the runner");
        let lines: Vec<_> = text.split("\r\n").collect();
        assert_eq!(
            lines[1],
            "2026-11-21T14:02:11Z,req_01010101010101010101010101010101,chat,small,\"'-ci, the runner\",12,34,done,no,no,0.0056"
        );
        assert!(
            lines[2].contains(",\"a,\"\"b\"\"\",") && lines[2].contains(",done,yes,yes,"),
            "{text}"
        );
        assert!(
            lines[3].contains(",'=HYPERLINK(1),") && lines[3].contains("cut off"),
            "{text}"
        );
        assert_eq!(lines.len(), 5, "the last line ends too");
    }

    /// Parses a file according to RFC 4180.
    fn read(text: &str) -> Vec<Vec<String>> {
        let (mut rows, mut row, mut field, mut quoted) =
            (Vec::new(), Vec::new(), String::new(), false);
        let mut chars = text.chars().peekable();
        while let Some(next) = chars.next() {
            match next {
                '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
                '"' => quoted = !quoted,
                ',' if !quoted => row.push(std::mem::take(&mut field)),
                '\r' if !quoted && chars.peek() == Some(&'\n') => {
                    chars.next();
                    row.push(std::mem::take(&mut field));
                    rows.push(std::mem::take(&mut row));
                }
                other => field.push(other),
            }
        }
        rows
    }

    proptest! {
        #[test]
        fn csv_fields_cannot_break_out_or_become_formulas(
            model in "[=+@\\-\"',;\t\r\na-z\u{ff1d}]{0,8}",
            key in "[=+@\\-\"',;\t\r\na-z\u{ff1d}]{0,8}",
        ) {
            let text = csv(&[row(&model, UsageFlags::NONE)], |_| &key);
            let rows = read(&text);
            prop_assert_eq!(rows.len(), 2);
            prop_assert_eq!(rows[1].len(), rows[0].len());
            for (place, name) in [(3, &model), (4, &key)] {
                let field = &rows[1][place];
                prop_assert!(field == name || field.strip_prefix('\'') == Some(name), "{field:?}");
                prop_assert!(!field.starts_with(['=', '+', '-', '@', '\t', '\r', '\u{ff1d}']), "{field:?}");
            }
        }
    }
}
