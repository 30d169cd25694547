//! Canonical numbers: a single spelling for each exact decimal value.
//!
//! The layout follows ECMAScript's `Number::toString` (RFC 8785 section 3.2.2.3), with the written digits in place of the digits of the
//! nearest double. Every number that a double holds exactly or prints shortest has its RFC 8785 form. A number with more digits than a
//! double can hold keeps its digits, and never equals another number.

use smallvec::SmallVec;

/// A larger exponent is rejected.
const EXPONENT_MAX: i64 = 1 << 32;

/// Fast check whether a parsed number is in its canonical spelling already, like most numbers.
pub(super) fn is_canonical(text: &[u8]) -> bool {
    if text.len() > 15 {
        return false;
    }
    let (mut fraction, mut exponent) = (false, false);
    for byte in text {
        fraction |= *byte == b'.';
        exponent |= *byte >= b'E';
    }
    if exponent {
        return false;
    }
    match text {
        // No trailing zeros, and few enough leading zeros that no zero is dropped.
        [.., last] if fraction => {
            let unsigned = text.strip_prefix(b"-").unwrap_or(text);
            *last != b'0' && !unsigned.starts_with(b"0.00000")
        }
        _ => text != b"-0",
    }
}

/// Appends a parsed number. `None` for an exponent out of range.
pub(super) fn write(text: &[u8], out: &mut SmallVec<[u8; 32]>) -> Option<()> {
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let e = unsigned.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (mantissa, exponent) = match e {
        Some(at) => (&unsigned[..at], exponent(&unsigned[at + 1..])?),
        None => (unsigned, 0),
    };
    let point = mantissa.iter().position(|&byte| byte == b'.');
    let whole = point.unwrap_or(mantissa.len());
    let all = mantissa.iter().filter(|byte| byte.is_ascii_digit());
    let leading = all.clone().take_while(|&&byte| byte == b'0').count();
    let mut digits: SmallVec<[u8; 32]> = all.skip(leading).copied().collect();
    while digits.last() == Some(&b'0') {
        digits.pop();
    }
    if digits.is_empty() {
        out.push(b'0');
        return Some(());
    }
    if negative {
        out.push(b'-');
    }
    // The value is 0.DIGITS times ten to the power of `point`.
    let point = i64::try_from(whole).ok()? - i64::try_from(leading).ok()? + exponent;
    let count = i64::try_from(digits.len()).ok()?;
    match point {
        1..=21 if count <= point => {
            out.extend_from_slice(&digits);
            out.extend((count..point).map(|_| b'0'));
        }
        1..=21 => {
            let (before, after) = digits.split_at(usize::try_from(point).ok()?);
            out.extend_from_slice(before);
            out.push(b'.');
            out.extend_from_slice(after);
        }
        -5..=0 => {
            out.extend_from_slice(b"0.");
            out.extend((point..0).map(|_| b'0'));
            out.extend_from_slice(&digits);
        }
        _ => {
            out.push(digits[0]);
            if digits.len() > 1 {
                out.push(b'.');
                out.extend_from_slice(&digits[1..]);
            }
            out.push(b'e');
            let power = point - 1;
            out.push(if power < 0 { b'-' } else { b'+' });
            out.extend_from_slice(itoa::Buffer::new().format(power.unsigned_abs()).as_bytes());
        }
    }
    Some(())
}

fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let mut value = 0i64;
    for digit in digits {
        value = value * 10 + i64::from(digit - b'0');
        if value > EXPONENT_MAX {
            return None;
        }
    }
    Some(if negative { -value } else { value })
}
