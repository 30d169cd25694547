//! Integration tests of the crate: tables of accepted input, and properties of edits.

mod answer;
mod chunk;
mod edit;
mod event;
mod hostile;
mod request;
mod text_as_chat;
mod usage;
mod words;
