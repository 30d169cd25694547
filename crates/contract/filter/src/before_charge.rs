//! A hook that runs before a charge.

use crate::{Exchange, Tokens};

/// The work of one filter when another is about to charge for a whole response: everything is known but the amount. Left on the exchange,
/// and called once by the filter that charges; not called when nothing is charged, or for a partial response.
///
/// It puts on the exchange what has to be durable together with the charge, as a type that the charging filter knows.
pub struct BeforeCharge(Box<Act>);

type Act = dyn FnOnce(&mut Exchange, Tokens, Estimated) + Send + Sync;

/// Whether tokens were counted by us because the provider did not report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimated(pub bool);

impl BeforeCharge {
    /// Runs `act` before the charge.
    pub fn new(
        act: impl FnOnce(&mut Exchange, Tokens, Estimated) + Send + Sync + 'static,
    ) -> BeforeCharge {
        BeforeCharge(Box::new(act))
    }

    /// Runs it: the charge will be for these tokens.
    pub fn act(self, exchange: &mut Exchange, tokens: Tokens, estimated: Estimated) {
        (self.0)(exchange, tokens, estimated);
    }
}
