//! A decoder of canonical forms.

use super::*;

/// The one value of this form, in RFC 8785.
pub(super) fn rfc8785(form: &[u8]) -> String {
    let mut rest = form;
    let text = value(&mut rest);
    assert!(rest.is_empty(), "bytes behind the value: {rest:x?}");
    text
}

fn take<'f>(rest: &mut &'f [u8], length: usize) -> &'f [u8] {
    let (taken, left) = rest.split_at(length);
    *rest = left;
    taken
}

/// The length in a first byte, or after it.
fn length(first: u8, long: usize, rest: &mut &[u8]) -> usize {
    let length = usize::from(first) & long;
    if length < long {
        return length;
    }
    let bytes = take(rest, 8).try_into().expect("eight bytes");
    let length = u64::from_le_bytes(bytes) as usize;
    assert!(length >= long, "a short text encoded as a long one");
    length
}

fn quoted(text: &str) -> String {
    serde_json_canonicalizer::to_string(&text).expect("it has a form")
}

fn value(rest: &mut &[u8]) -> String {
    let first = take(rest, 1)[0];
    match first {
        NULL => "null".to_owned(),
        FALSE => "false".to_owned(),
        TRUE => "true".to_owned(),
        WORD..STRING => {
            let word = crate::word::ALL[usize::from(first - WORD)].1;
            quoted(word)
        }
        STRING..NUMBER => {
            let length = length(first, LONG_STRING, rest);
            let text = std::str::from_utf8(take(rest, length)).expect("UTF-8");
            let known = Word::at(text.as_bytes(), 0, text.len());
            let is_word = known.is_some_and(|word| word as u8 <= LAST_WORD as u8);
            assert!(!is_word, "`{text}` encoded in full");
            quoted(text)
        }
        NUMBER..ARRAY => {
            let length = length(first, LONG, rest);
            String::from_utf8(take(rest, length).to_vec()).expect("UTF-8")
        }
        ARRAY..OBJECT => {
            let items = list(first, rest, value);
            format!("[{}]", items.join(","))
        }
        OBJECT.. => {
            let mut members = list(first, rest, |rest| {
                let name: String = serde_json::from_str(&value(rest)).expect("a name");
                (name, value(rest))
            });
            members.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
            let member = |(name, value)| format!("{}:{value}", quoted(name));
            let members: Vec<_> = members
                .iter()
                .map(|(name, value)| (name.as_str(), value))
                .map(member)
                .collect();
            format!("{{{}}}", members.join(","))
        }
        END => panic!("an end where a value was expected"),
    }
}

fn list<T>(first: u8, rest: &mut &[u8], mut one: impl FnMut(&mut &[u8]) -> T) -> Vec<T> {
    let length = usize::from(first) & LONG;
    let mut list = Vec::new();
    while if length < LONG {
        list.len() < length
    } else {
        rest[0] != END
    } {
        list.push(one(rest));
    }
    if length == LONG {
        take(rest, 1);
        assert!(list.len() >= LONG, "a short list encoded as a long one");
    }
    list
}
