//! The state of the facilitator stand-in, and its responses.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tollgate_clock::Clock;
use tollgate_evm::{Address, Authorization, Signature, TxHash};

use super::chain::Chain;
use super::fault::{Effect, Operation};
use super::token::{NETWORK, Token};
use super::{rpc, rules};
use crate::fault::Faults;
use crate::gate::Gate;

/// A recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// The body.
    pub body: Bytes,
}

/// A response.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Bytes,
    pub(super) location: Option<String>,
}

pub(super) struct State {
    pub(super) chain: Chain,
    pub(super) faults: Faults<Operation, Effect>,
    pub(super) kept: Vec<Call>,
    /// Pending transactions, by signature.
    pub(super) pending: BTreeMap<Signature, (TxHash, Authorization, u16)>,
    /// Whether a settled payment is reported as settled again; the published facilitator reports its nonce as used.
    pub(super) remembers: bool,
    settled: BTreeMap<Signature, TxHash>,
    /// The bearer token that every call requires.
    pub(super) bearer: Option<String>,
}

pub(super) struct Shared {
    pub(super) token: Token,
    pub(super) gate: Gate,
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn new(clock: Clock) -> Shared {
        Shared {
            token: Token::default(),
            gate: Gate::new(),
            state: Mutex::new(State {
                chain: Chain::new(clock),
                faults: Faults::default(),
                kept: Vec::new(),
                pending: BTreeMap::new(),
                remembers: false,
                settled: BTreeMap::new(),
                bearer: None,
            }),
        }
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock())
    }

    /// Answers a call; `None` cuts the connection instead.
    pub(super) async fn answer(
        &self,
        path: &str,
        bearer: Option<&str>,
        body: &[u8],
    ) -> Option<Reply> {
        let operation = match path.strip_prefix("/moved").unwrap_or(path) {
            "/supported" => Operation::Supported,
            "/verify" => Operation::Verify,
            "/settle" => Operation::Settle,
            "/rpc" => Operation::Rpc,
            _ => return Some(page(404)),
        };
        let (effect, barred) = self.with(|state| {
            let barred = operation != Operation::Rpc
                && state
                    .bearer
                    .as_ref()
                    .is_some_and(|wanted| bearer != Some(&*format!("Bearer {wanted}")));
            // A redirected request is the same call.
            let effect = match path.starts_with("/moved") {
                true => None,
                false => state.faults.on_call(operation),
            };
            state.kept.push(Call {
                operation,
                body: Bytes::copy_from_slice(body),
            });
            (effect, barred)
        });
        if barred {
            return Some(page(401));
        }
        let to = |location: String| Reply {
            status: 307,
            body: Bytes::new(),
            location: Some(location),
        };
        match &effect {
            Some(Effect::LoseCall) => return None,
            Some(Effect::Status(status)) => return Some(page(*status)),
            Some(Effect::Refuse(why, status)) => {
                return Some(refusal(operation, why, "", *status));
            }
            Some(Effect::Redirect) => return Some(to(format!("/moved{path}"))),
            Some(Effect::ElsewhereRedirect) => {
                return Some(to(format!("http://localhost:1{path}")));
            }
            Some(Effect::Hold) => self.gate.pass().await,
            _ => {}
        }
        let question: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let reply =
            self.with(|state| state.act(operation, &question, effect.as_ref(), &self.token));
        match effect {
            Some(Effect::LoseAnswer) => None,
            Some(Effect::FailAfter) => Some(page(500)),
            Some(Effect::AnswerWith(members)) => Some(answer_with(reply, members)),
            Some(Effect::Nonsense) => Some(json_reply(200, &json!({"ok": true}))),
            Some(Effect::Flood) => Some(Reply {
                status: 200,
                body: vec![b' '; 8 << 20].into(),
                location: None,
            }),
            Some(Effect::HoldAfter) => {
                self.gate.pass().await;
                Some(reply)
            }
            _ => Some(reply),
        }
    }
}

impl State {
    fn act(
        &mut self,
        operation: Operation,
        question: &Value,
        effect: Option<&Effect>,
        token: &Token,
    ) -> Reply {
        match operation {
            Operation::Supported => json_reply(200, &rules::kinds()),
            Operation::Rpc => json_reply(200, &rpc::answer(question, &self.chain, token)),
            Operation::Verify => {
                let judged = rules::read(question, token).and_then(|payment| {
                    rules::judge(&payment.transfer, &self.chain).map(|()| payment)
                });
                match judged {
                    Ok(payment) => json_reply(
                        200,
                        &json!({"isValid": true, "payer": payment.transfer.from.to_string()}),
                    ),
                    Err(why) => refusal(operation, why, "", 200),
                }
            }
            Operation::Settle => self.settle(question, effect, token),
        }
    }

    fn settle(&mut self, question: &Value, effect: Option<&Effect>, token: &Token) -> Reply {
        let payment = match rules::read(question, token) {
            Ok(payment) => payment,
            Err(why) => return refusal(Operation::Settle, why, "", 200),
        };
        let transfer = &payment.transfer;
        if let Some((hash, _, status)) = self.pending.get(&payment.signature) {
            return pending(hash, *status);
        }
        if let Some(hash) = self.settled.get(&payment.signature)
            && self.remembers
        {
            return success(transfer, hash, effect);
        }
        if effect == Some(&Effect::Phantom) {
            let hash = self.chain.new_hash();
            return success(transfer, &hash, None);
        }
        if effect == Some(&Effect::OldTransaction)
            && let Some(old) = self.chain.mined.first()
        {
            return success(transfer, &old.transaction, None);
        }
        if effect == Some(&Effect::Reverted) {
            let hash = self.chain.new_hash();
            self.chain.reverted.push(hash);
            return success(transfer, &hash, None);
        }
        if let Err(why) = rules::judge(transfer, &self.chain) {
            return refusal(Operation::Settle, why, "", 200);
        }
        let hash = self.chain.new_hash();
        if let Some(Effect::Pending(status)) = effect {
            self.pending
                .insert(payment.signature, (hash, transfer.clone(), *status));
            return pending(&hash, *status);
        }
        if let Some(Effect::SubmitThenRefuse(why)) = effect {
            self.pending
                .insert(payment.signature, (hash, transfer.clone(), 200));
            return refusal(Operation::Settle, why, "", 200);
        }
        assert!(self.chain.execute(transfer, hash), "it was judged good");
        self.settled.insert(payment.signature.clone(), hash);
        match effect {
            Some(Effect::RefuseAfter(why)) => {
                refusal(Operation::Settle, why, &hash.to_string(), 200)
            }
            Some(Effect::SettleThenRefuse(why)) => refusal(Operation::Settle, why, "", 200),
            effect => success(transfer, &hash, effect),
        }
    }

    /// Mines pending transactions, or drops them.
    pub(super) fn mine(&mut self, arrives: bool) -> usize {
        let pending = std::mem::take(&mut self.pending);
        let mut count = 0;
        for (signature, (hash, transfer, _)) in pending {
            if arrives && self.chain.execute(&transfer, hash) {
                self.settled.insert(signature, hash);
                count += 1;
            }
        }
        count
    }
}

fn success(transfer: &Authorization, hash: &TxHash, effect: Option<&Effect>) -> Reply {
    let payer = match effect {
        Some(Effect::StrangePayer) => Address([9; 20]).to_string(),
        _ => transfer.from.to_string(),
    };
    let network = match effect {
        Some(Effect::StrangeNetwork) => "eip155:1",
        _ => NETWORK,
    };
    let transaction = match effect {
        Some(Effect::NoTransaction) => String::new(),
        _ => hash.to_string(),
    };
    json_reply(
        200,
        &json!({"success": true, "payer": payer, "transaction": transaction, "network": network}),
    )
}

/// The response with members replaced, or removed.
fn answer_with(reply: Reply, members: Map<String, Value>) -> Reply {
    let mut body: Map<String, Value> = serde_json::from_slice(&reply.body).unwrap_or_default();
    body.extend(members);
    body.retain(|_, value| !value.is_null());
    json_reply(reply.status, &Value::Object(body))
}

fn pending(hash: &TxHash, status: u16) -> Reply {
    refusal(
        Operation::Settle,
        "settlement_pending",
        &hash.to_string(),
        status,
    )
}

fn refusal(operation: Operation, why: &str, transaction: &str, status: u16) -> Reply {
    let body = match operation {
        Operation::Settle => {
            json!({"success": false, "errorReason": why, "transaction": transaction, "network": NETWORK})
        }
        _ => json!({"isValid": false, "invalidReason": why}),
    };
    json_reply(status, &body)
}

pub(super) fn json_reply(status: u16, body: &Value) -> Reply {
    Reply {
        status,
        body: body.to_string().into(),
        location: None,
    }
}

fn page(status: u16) -> Reply {
    Reply {
        status,
        body: Bytes::from(format!("<html>{status}</html>")),
        location: None,
    }
}
