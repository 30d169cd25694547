//! The filter from outside: a request goes in, what goes upstream comes out; an answer goes in, what the client gets comes out.

mod answers;
mod requests;
mod support;
