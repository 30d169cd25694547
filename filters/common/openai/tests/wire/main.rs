//! The crate from outside: tables of what is accepted, and properties of what is changed.

mod answer;
mod chunk;
mod edit;
mod event;
mod hostile;
mod request;
mod text_as_chat;
mod words;
