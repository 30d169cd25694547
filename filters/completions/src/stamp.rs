//! The metadata object (price, balance, cache status), stamped into the last event or the body.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use tollgate_filter::{
    CacheEntryId, CacheStatus, Charge, Ending, EventKind, Exchange, HeldEvent, Principal, Tail,
    Tokens,
};
use tollgate_money::{IdText, Micros};
use tollgate_openai::{Metadata, Usage};

use crate::answer::AnswerState;
use crate::error::CompletionsError;

/// The charge where no filter charges.
const FREE: Charge = Charge {
    used: Micros::ZERO,
    remaining: Micros::ZERO,
    tokens: Tokens {
        prompt: 0,
        completion: 0,
    },
    estimated: false,
};

thread_local! {
    /// A reused buffer for a metadata object of a few hundred bytes. The object is built before its position is known.
    static METADATA: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// Writes the metadata into the last piece of an answer, and completes a provider's stream that ended without `[DONE]`.
pub(crate) fn stamp(exchange: &mut Exchange, tail: &mut Tail) -> Result<(), CompletionsError> {
    METADATA.with_borrow_mut(|buffer| {
        buffer.clear();
        stamp_with(exchange, tail, buffer)
    })
}

fn stamp_with(
    exchange: &mut Exchange,
    tail: &mut Tail,
    metadata: &mut BytesMut,
) -> Result<(), CompletionsError> {
    let charge = exchange.get::<Charge>().copied();
    // A broken stream reports its cost, if any.
    let whole = tail.ending() == Ending::Complete;
    let shown = whole || charge.is_some();
    let charge = charge.unwrap_or(FREE);
    write_metadata(exchange, &charge, metadata)?;
    // Where no filter charges, the usage is the provider's.
    let charged = (charge.tokens != Tokens::default())
        .then(|| Usage::new(charge.tokens.prompt, charge.tokens.completion));
    let stored = exchange.record.cache == Some(CacheStatus::Hit);
    let Some(state) = exchange.get_mut::<AnswerState>() else {
        return Ok(());
    };
    let more = if let Some(last) = tail.last_data() {
        if stored && let Some(stamped) = state.stamp_stored(&last.data, metadata, charged) {
            last.data = stamped;
            None
        } else if let Some(stamped) = state.stamp(&last.data, metadata, charged) {
            last.data = stamped.last;
            stamped.more
        } else {
            None
        }
    } else if shown {
        state.last_event(metadata, charged)
    } else {
        None
    };
    if let Some(data) = more {
        let at = tail
            .held
            .iter()
            .position(|event| event.kind == EventKind::Done)
            .unwrap_or(tail.held.len());
        let kind = EventKind::Data;
        tail.held.insert(at, HeldEvent { kind, data });
    }
    let done = tail.held.iter().any(|event| event.kind == EventKind::Done);
    if state.is_stream() && whole && !done {
        // Every requested choice has ended: otherwise the driver would have reported the stream as cut.
        tail.held.push(HeldEvent {
            kind: EventKind::Done,
            data: Bytes::from_static(state.family().answer.done),
        });
    }
    Ok(())
}

fn write_metadata(
    exchange: &Exchange,
    charge: &Charge,
    out: &mut BytesMut,
) -> Result<(), CompletionsError> {
    let principal = exchange
        .get::<Principal>()
        .ok_or(CompletionsError::NoPrincipal)?;
    let cache = exchange.record.cache.unwrap_or(CacheStatus::Bypass);
    let entry = exchange.record.cache_entry.map(CacheEntryId::text);
    Metadata {
        cache_hit: cache == CacheStatus::Hit,
        cache_entry_id: entry.as_ref().map(<[u8; _]>::as_slice),
        cache_store_status: Some(cache.word().as_bytes()),
        credits_used: charge.used.text().as_bytes(),
        credits_remaining: charge.remaining.text().as_bytes(),
        owner: principal.account.text(&mut IdText::default()).as_bytes(),
        resolved_owner: None,
        usage_estimated: charge.estimated,
    }
    .write(out);
    Ok(())
}
