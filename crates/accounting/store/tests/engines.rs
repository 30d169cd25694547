//! The acceptance suite of the store on each engine, and the tests of each engine's own parts.
//!
//! A test of `suite/` is `sqlite::suite::units::...` here: it opens stores, and reads tables past them, with `engine.rs` of its engine. An
//! engine is one module more, with an `engine.rs` of the same functions.

#[allow(
    clippy::duplicate_mod,
    reason = "the suite is compiled once for each engine"
)]
mod sqlite {
    mod backup;
    pub(crate) mod engine;
    mod fence;
    mod journal_row;
    mod last_commit;
    mod open;
    mod posting;
    mod rename;
    #[path = "../suite/mod.rs"]
    mod suite;
}

#[allow(
    clippy::duplicate_mod,
    reason = "the suite is compiled once for each engine"
)]
mod postgres {
    mod commit;
    pub(crate) mod engine;
    mod feed;
    mod first_takes;
    mod import;
    mod node_settings;
    mod nodes;
    mod open;
    mod proxy;
    mod recalls;
    mod refusals;
    mod remedies;
    mod sent;
    mod silent;
    #[path = "../suite/mod.rs"]
    mod suite;
}

#[allow(
    clippy::duplicate_mod,
    reason = "the suite is compiled once for each engine"
)]
mod next;
