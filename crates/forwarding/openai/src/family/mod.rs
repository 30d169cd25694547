//! Endpoint families: a value per family, in a list.
//!
//! A family is an operation that clients call and providers answer. The chain reads the value of a request's family wherever families
//! differ. `docs/families.md` describes the addition of a family.

mod chat;
mod form;
mod shared;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use form::Role;
pub use form::{AnswerForm, Content, Family, RequestForm};

impl Family {
    /// Chat completions.
    pub const CHAT: &'static Family = &chat::CHAT;

    /// Text completions, the older operation.
    pub const TEXT: &'static Family = &text::TEXT;

    /// Every family, at its [`index`](Self::index). Where a path ends like another path, the longer path stands first.
    pub const ALL: [&'static Family; 2] = [Family::CHAT, Family::TEXT];

    /// The numbers in the store, for a table that is made at compile time.
    pub const STORED: [i64; Family::ALL.len()] = {
        let mut stored = [0; Family::ALL.len()];
        let mut at = 0;
        while at < stored.len() {
            stored[at] = Family::ALL[at].stored;
            at += 1;
        }
        stored
    };

    /// The family of a path below any prefix.
    pub fn at(path: &str) -> Option<&'static Family> {
        let mut all = Family::ALL.into_iter();
        all.find(|family| path.ends_with(family.path))
    }

    /// The family with a number in the store.
    pub fn stored_as(number: i64) -> Option<&'static Family> {
        Family::ALL
            .into_iter()
            .find(|family| family.stored == number)
    }

    /// The family with a number in cache entries.
    pub fn cached_as(number: u8) -> Option<&'static Family> {
        let mut all = Family::ALL.into_iter();
        all.find(|family| family.cache_code == number)
    }
}
