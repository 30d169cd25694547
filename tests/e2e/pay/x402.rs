//! The plan bought with signed transfers (x402).

mod buy;
mod false_answers;
mod faults;
mod refusals;
mod token;

use std::collections::BTreeMap;

use http::HeaderValue;
use serde_json::{Value, json};
use tollgate_clock::Clock;
use tollgate_money::AccountId;
use tollgate_testing::facilitator::{MERCHANT, Operation, merchant};
use tollgate_testing::wallet::encoded;
use tollgate_testing::{Answer, Client, Facilitator, Wallet, within};

use crate::rig::{Rig, poll};

/// The address of the purchase.
pub(crate) const BUY: &str = "/commerce/subscriptions/svc-pro/x402";

/// 199 USDC in units of the token.
pub(super) const PRICE: u64 = 199_000_000;

/// A gateway with sales, a facilitator, and a buyer with a wallet.
pub(super) struct X402Rig {
    pub(super) rig: Rig,
    pub(super) facilitator: Facilitator,
    pub(super) wallet: Wallet,
    /// A free account of the buyer, and the account's key.
    pub(super) account: AccountId,
    pub(super) key: String,
}

impl X402Rig {
    /// A rig with a gateway that can read the chain.
    pub(super) async fn open() -> X402Rig {
        X402Rig::with(true).await
    }

    /// A rig with a gateway without a node: the gateway trusts the facilitator.
    pub(super) async fn without_node() -> X402Rig {
        X402Rig::with(false).await
    }

    async fn with(node: bool) -> X402Rig {
        let facilitator = Facilitator::start().await;
        let rig = Rig::with(&settings(&facilitator, node)).await;
        X402Rig::of(rig, facilitator).await
    }

    /// A rig with the gateway `rig`.
    pub(super) async fn of(rig: Rig, facilitator: Facilitator) -> X402Rig {
        let account = rig.new_account("free", 0).await;
        let (_, key) = rig.new_key(account, |_| {}).await;
        let fixture = X402Rig {
            rig,
            facilitator,
            wallet: Wallet::new(1),
            account,
            key,
        };
        fixture.wait_until_offered().await;
        fixture
    }

    /// Waits until offers are shown.
    pub(super) async fn wait_until_offered(&self) {
        let mut often = tokio::time::interval(std::time::Duration::from_millis(5));
        let open = async {
            while self.rig.metric("tollgate_x402_up").await != 1 {
                often.tick().await;
            }
        };
        within("the facilitator's first word", open).await;
    }

    pub(super) fn client(&self) -> Client {
        Client::new(&self.rig.url()).with_key(&self.key)
    }

    /// A client without a credential by default.
    pub(super) fn client_without_credential(&self) -> Client {
        Client::new(&self.rig.url())
    }

    /// Asks without a payment.
    pub(super) async fn ask(&self) -> Answer {
        self.client().post(BUY, &json!({})).await
    }

    /// A payment for the current offer.
    pub(super) async fn payment(&self, nonce: u8) -> String {
        let asked = self.ask().await;
        assert_eq!(asked.status, 402, "{}", asked.text());
        let offer = asked.header("payment-required").expect("an offer");
        self.wallet.pay(offer, [nonce; 32], now())
    }

    /// Brings a payment.
    pub(super) async fn submit(&self, payment: &str) -> Answer {
        self.submit_with(payment, &json!({})).await
    }

    pub(super) async fn submit_with(&self, payment: &str, body: &Value) -> Answer {
        submit(&self.client(), payment, body).await
    }

    /// Number of transfers of the price received by the merchant.
    pub(super) fn transfers(&self) -> usize {
        let mined = self.facilitator.transfers();
        for one in &mined {
            assert_eq!(one.transfer.to, merchant());
            assert_eq!(one.transfer.value, PRICE.into());
        }
        mined.len()
    }

    /// Number of payments in the ledger.
    pub(super) fn payments(&self) -> usize {
        let rows = self.rig.books.store.payments_of(self.account, 100);
        rows.expect("readable").len()
    }

    /// Waits until no payment of the account has an unknown outcome.
    pub(super) async fn clear(&self) {
        let clear = || {
            let open = self.rig.books.store.authorization_open(self.account);
            open.expect("readable").is_none()
        };
        within("the end of what is unclear", poll(clear)).await;
    }

    /// Ends the test: the transfers to the merchant match the granted periods.
    pub(super) async fn close(self) {
        assert_eq!(
            self.transfers(),
            self.payments(),
            "transfers to the merchant equal paid periods"
        );
        self.rig.finish().await;
    }
}

/// Settings for sales through a facilitator.
pub(crate) fn settings(facilitator: &Facilitator, node: bool) -> String {
    let url = facilitator.url();
    let node = match node {
        true => format!("rpc_url = \"{url}/rpc\""),
        false => String::new(),
    };
    format!("[payments.x402]\nfacilitator_url = \"{url}\"\npay_to = \"{MERCHANT}\"\n{node}\n")
}

/// The offer of a gateway with [`settings`], for buyers without a shown offer.
pub(crate) fn offer(facilitator: &Facilitator) -> String {
    let asked = facilitator.asked(Operation::Verify);
    let terms = asked.first().map_or(
        json!({
            "scheme": "exact", "network": "eip155:8453", "amount": PRICE.to_string(),
            "asset": "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "payTo": MERCHANT, "maxTimeoutSeconds": 300,
            "extra": {"name": "USD Coin", "version": "2"},
        }),
        |asked| asked["paymentRequirements"].clone(),
    );
    encoded(&json!({"x402Version": 2, "resource": {"url": "x"}, "accepts": [terms]}))
}

pub(crate) async fn submit(client: &Client, payment: &str, body: &Value) -> Answer {
    let mut request = client.request("POST", BUY, body.to_string().into());
    let value = HeaderValue::from_str(payment).expect("a value");
    request.headers_mut().insert("payment-signature", value);
    client.send(request).await
}

pub(crate) fn now() -> u64 {
    u64::try_from(Clock::system().now().as_secs()).expect("after 1970")
}

/// The members of a problem about the state of the payment.
pub(super) fn states(answer: &Answer) -> BTreeMap<String, String> {
    let body = answer.json();
    ["payment_state", "retry_action"]
        .into_iter()
        .map(|name| {
            (
                name.to_owned(),
                body[name].as_str().unwrap_or("").to_owned(),
            )
        })
        .collect()
}

/// Checks status, code, state and action of an answer.
pub(super) fn is(answer: &Answer, status: u16, code: &str, state: &str, action: &str) {
    let body = answer.text();
    assert_eq!(answer.status, status, "{body}");
    assert_eq!(answer.json()["error"]["code"], code, "{body}");
    let found = states(answer);
    assert_eq!(found["payment_state"], state, "{body}");
    assert_eq!(found["retry_action"], action, "{body}");
}
