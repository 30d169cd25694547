//! A last word before a charge.

use crate::{Exchange, Tokens};

/// What one filter has to do when another is about to charge for a whole answer: all is known but the amount. Left on the exchange, and
/// called by the filter that charges, once; not at all where nothing is charged, or for half an answer.
///
/// What has to be durable together with the charge is put on the exchange in here, as a type that the charging filter knows.
pub struct BeforeCharge(Box<Act>);

type Act = dyn FnOnce(&mut Exchange, Tokens, Estimated) + Send + Sync;

/// Whether tokens were counted by us because the provider did not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimated(pub bool);

impl BeforeCharge {
    /// Has `act` done before the charge.
    pub fn new(
        act: impl FnOnce(&mut Exchange, Tokens, Estimated) + Send + Sync + 'static,
    ) -> BeforeCharge {
        BeforeCharge(Box::new(act))
    }

    /// Does it: the charge will be for these tokens.
    pub fn act(self, exchange: &mut Exchange, tokens: Tokens, estimated: Estimated) {
        (self.0)(exchange, tokens, estimated);
    }
}
