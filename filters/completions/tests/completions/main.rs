//! Integration tests of the filter: request to upstream body, provider answer to client answer.

mod answers;
mod requests;
mod support;
