//! Webhook events: verification of the signature, and the objects named by an event. The rest of an event is ignored.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;
use reqwest::Method;
use serde::Deserialize;
use tollgate_clock::Timestamp;

use crate::certificates::{CertificateError, Chain};
use crate::client::{Call, Client};
use crate::error::{Error, ErrorKind};
use crate::wire::is_id;

/// Size limit of a certificate file, bytes.
const CERTIFICATE_BYTES_MAX: usize = 64 * 1024;

/// Timeout of a certificate's fetch.
const CERTIFICATE_TIME: Duration = Duration::from_secs(5);

/// Maximum age of an event: PayPal retries for three days.
const AGE_MAX: Duration = Duration::from_secs((3 * 24 + 1) * 3600);

/// How far PayPal's clock may be ahead of ours.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// Maximum length of a payment id. PayPal's have 17 characters.
const CAPTURE_ID_MAX: usize = 36;

/// Maximum of payments named by one event.
pub(crate) const TRANSACTIONS_MAX: usize = 16;

/// The header fields of an event: id, time, signature, the certificate's URL, algorithm.
pub(crate) const FIELDS: [&str; 5] = [
    "paypal-transmission-id",
    "paypal-transmission-time",
    "paypal-transmission-sig",
    "paypal-cert-url",
    "paypal-auth-algo",
];

/// How webhook signatures are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Locally with PayPal's certificate; by a call to PayPal only where no path to a root is found.
    #[default]
    Locally,
    /// By a call to PayPal for each event (`verify-webhook-signature`).
    AskPayPal,
}

/// A verified webhook event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookEvent {
    /// PayPal's event id, shared by retransmissions.
    pub id: String,
    /// The event type: `CHECKOUT.ORDER.APPROVED` and the like.
    pub kind: String,
    /// The objects named by the event.
    pub resource: Resource,
}

/// The objects named by an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// Our purchase id.
    pub custom_id: Option<String>,
    /// The invoice id, which is our purchase id too.
    pub invoice_id: Option<String>,
    pub order: Option<String>,
    /// The payment; a refund has only a link to it.
    pub capture: Option<String>,
    pub subscription: Option<String>,
    /// Payments: a charge of a subscription, or disputed ones.
    pub transactions: Vec<String>,
}

/// Why an event was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The event is forged, altered or malformed.
    #[error("webhook event rejected: {0}")]
    Refused(&'static str),
    /// Verification failed for the moment.
    #[error("verifying the webhook event failed")]
    Undecided(#[source] Error),
}

/// The header fields of an event.
pub(crate) struct Transmission<'a> {
    id: &'a str,
    time: &'a str,
    pub(crate) signature: &'a str,
    pub(crate) certificate: &'a str,
    algorithm: &'a str,
}

#[derive(Deserialize)]
pub(crate) struct Body {
    id: String,
    event_type: String,
    #[serde(default)]
    resource: ResourceBody,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourceBody {
    id: Option<String>,
    custom_id: Option<String>,
    invoice_id: Option<String>,
    purchase_units: Vec<UnitBody>,
    supplementary_data: Supplement,
    links: Vec<LinkBody>,
    /// Of a charge (`PAYMENT.SALE.*`): our mandate id, the subscription, and for a refund the charge.
    custom: Option<String>,
    billing_agreement_id: Option<String>,
    sale_id: Option<String>,
    disputed_transactions: Vec<DisputedBody>,
}

/// A disputed payment (Disputes v1, `transaction_info`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct DisputedBody {
    seller_transaction_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UnitBody {
    custom_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LinkBody {
    rel: Option<String>,
    href: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Supplement {
    related_ids: Related,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Related {
    order_id: Option<String>,
}

#[derive(Deserialize)]
struct VerificationResponse {
    verification_status: String,
}

impl Client {
    /// Verifies the signature of an event and reads the named objects. `body` must be unchanged, byte for byte: its CRC-32 is part of the
    /// signed text.
    pub async fn verify_webhook(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<WebhookEvent, WebhookError> {
        let Some(webhook_id) = self.shared.settings.webhook_id.as_deref() else {
            return Err(WebhookError::Refused("no webhook is configured"));
        };
        let transmission = Transmission::of(headers)?;
        let now = self.shared.clock.now();
        transmission.check(now)?;
        if !self.environment().is_certificate(transmission.certificate) {
            return Err(WebhookError::Refused("its certificate URL is not PayPal's"));
        }
        let event = parse(body)?;
        match self.shared.settings.verify {
            Verify::AskPayPal => {
                self.verify_remotely(&transmission, webhook_id, body)
                    .await?
            }
            Verify::Locally => {
                self.verify_locally(&transmission, webhook_id, body, now)
                    .await?
            }
        }
        event.read()
    }

    async fn verify_locally(
        &self,
        transmission: &Transmission<'_>,
        webhook_id: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), WebhookError> {
        let signature = BASE64
            .decode(transmission.signature)
            .map_err(|_| WebhookError::Refused("its signature is not base64"))?;
        let text = transmission.signed(webhook_id, body);
        let certificates = &self.shared.certificates;
        let address = transmission.certificate;
        let elapsed = self.shared.clock.elapsed();
        let cached = certificates.cached(address, elapsed);
        let is_new = cached.is_none();
        let chain = match cached {
            Some(chain) => chain,
            None => {
                let _permit = certificates.fetches.acquire().await;
                const WHAT: &str = "fetch certificate";
                let pem = self
                    .fetch(address, CERTIFICATE_TIME, CERTIFICATE_BYTES_MAX, WHAT)
                    .await
                    .map_err(|error| match error.kind {
                        // PayPal has no such certificate: a forged event.
                        ErrorKind::Gone | ErrorKind::Misconfigured => {
                            WebhookError::Refused("its certificate does not exist")
                        }
                        _ => WebhookError::Undecided(error),
                    })?;
                Chain::read(&pem).ok_or(WebhookError::Refused("its certificate is not PEM"))?
            }
        };
        let checked = certificates.check(&chain, now, text.as_bytes(), &signature);
        if is_new && matches!(checked, Ok(()) | Err(CertificateError::BadSignature)) {
            certificates.insert(address, chain, elapsed);
        }
        match checked {
            Ok(()) => Ok(()),
            Err(CertificateError::BadSignature) => {
                Err(WebhookError::Refused("its signature does not match"))
            }
            Err(CertificateError::Invalid(why)) => Err(WebhookError::Refused(why)),
            Err(CertificateError::NoPath) => {
                self.verify_remotely(transmission, webhook_id, body).await
            }
        }
    }

    /// Verification by PayPal (Webhooks v1, `verify-webhook-signature`). The body is embedded unchanged.
    async fn verify_remotely(
        &self,
        transmission: &Transmission<'_>,
        webhook_id: &str,
        body: &[u8],
    ) -> Result<(), WebhookError> {
        let quoted = |text: &str| serde_json::to_string(text).expect("a text serialises");
        let mut request = format!(
            r#"{{"auth_algo":{},"cert_url":{},"transmission_id":{},"transmission_sig":{},"transmission_time":{},"webhook_id":{},"webhook_event":"#,
            quoted(transmission.algorithm),
            quoted(transmission.certificate),
            quoted(transmission.id),
            quoted(transmission.signature),
            quoted(transmission.time),
            quoted(webhook_id),
        )
        .into_bytes();
        request.extend_from_slice(body);
        request.push(b'}');
        let response: VerificationResponse = self
            .call(Call {
                method: Method::POST,
                path: "/v1/notifications/verify-webhook-signature",
                what: "verify webhook signature",
                key: None,
                body: Some(request),
            })
            .await
            .map_err(WebhookError::Undecided)?;
        match &*response.verification_status {
            "SUCCESS" => Ok(()),
            _ => Err(WebhookError::Refused("PayPal does not confirm it")),
        }
    }
}

/// The body of an event, not verified yet.
pub(crate) fn parse(body: &[u8]) -> Result<Body, WebhookError> {
    serde_json::from_slice(body).map_err(|_| WebhookError::Refused("its body is not an event"))
}

impl<'a> Transmission<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Result<Transmission<'a>, WebhookError> {
        let field = |name: &str| {
            let mut values = headers.get_all(name).iter();
            let value = values.next().and_then(|value| value.to_str().ok());
            match (value, values.next()) {
                (Some(value), None) if (1..=2048).contains(&value.len()) => Ok(value),
                _ => Err(WebhookError::Refused(
                    "a header field of PayPal's is missing or repeated",
                )),
            }
        };
        let [id, time, signature, certificate, algorithm] = FIELDS;
        Ok(Transmission {
            id: field(id)?,
            time: field(time)?,
            signature: field(signature)?,
            certificate: field(certificate)?,
            algorithm: field(algorithm)?,
        })
    }

    pub(crate) fn check(&self, now: Timestamp) -> Result<(), WebhookError> {
        if self.algorithm != "SHA256withRSA" {
            return Err(WebhookError::Refused(
                "its signature algorithm is not supported",
            ));
        }
        let time = Timestamp::from_rfc3339(self.time)
            .ok_or(WebhookError::Refused("its time is malformed"))?;
        if now.duration_since(time) > AGE_MAX {
            return Err(WebhookError::Refused("it is too old"));
        }
        if time.duration_since(now) > AHEAD_MAX {
            return Err(WebhookError::Refused("its time is in the future"));
        }
        Ok(())
    }

    /// The signed text: transmission id, time, webhook id and the decimal CRC-32 of the body, separated by bars.
    pub(crate) fn signed(&self, webhook_id: &str, body: &[u8]) -> String {
        format!(
            "{}|{}|{webhook_id}|{}",
            self.id,
            self.time,
            crc32fast::hash(body)
        )
    }
}

impl Body {
    pub(crate) fn read(self) -> Result<WebhookEvent, WebhookError> {
        let bounded = |text: &str, most| (1..=most).contains(&text.len());
        if !bounded(&self.id, 128) || !bounded(&self.event_type, 128) {
            return Err(WebhookError::Refused("its body is not an event"));
        }
        let resource = self.resource;
        let capture = resource.links.iter().find_map(LinkBody::capture);
        let kind = &self.event_type;
        let is_order = kind.starts_with("CHECKOUT.ORDER.");
        let is_sale = kind.starts_with("PAYMENT.SALE.");
        let own_id = resource.id.clone().filter(|id| is_id(id));
        let subscription = match kind.starts_with("BILLING.SUBSCRIPTION.") {
            true => own_id.clone(),
            false => resource.billing_agreement_id.filter(|id| is_id(id)),
        };
        let disputed = resource.disputed_transactions.into_iter();
        let transactions = disputed
            .filter_map(|one| one.seller_transaction_id)
            .chain(resource.sale_id)
            .chain(own_id.filter(|_| is_sale))
            .filter(|id| is_id(id))
            .take(TRANSACTIONS_MAX)
            .collect();
        let custom_id = resource.custom_id.or(resource.custom).or_else(|| {
            let mut units = resource.purchase_units.into_iter();
            units.find_map(|unit| unit.custom_id)
        });
        let order = match is_order {
            true => resource.id,
            false => resource.supplementary_data.related_ids.order_id,
        };
        Ok(WebhookEvent {
            id: self.id,
            kind: self.event_type,
            resource: Resource {
                custom_id,
                invoice_id: resource.invoice_id,
                order,
                capture,
                subscription,
                transactions,
            },
        })
    }
}

impl LinkBody {
    /// The payment that a link names: `up` of a refund (Payments v2, `refund.links`), `self` of a payment.
    fn capture(&self) -> Option<String> {
        if !matches!(self.rel.as_deref(), Some("up" | "self")) {
            return None;
        }
        let (rest, id) = self.href.as_deref()?.rsplit_once('/')?;
        let is_id = (1..=CAPTURE_ID_MAX).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (is_id && rest.ends_with("/v2/payments/captures")).then(|| id.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"id":"WH-TEST-0001","event_version":"1.0","create_time":"2026-11-01T12:00:00.000Z","resource_type":"sale","event_type":"PAYMENT.SALE.COMPLETED","summary":"Payment completed for $ 199.0 USD","resource":{"id":"9AB12345CD678901E","state":"completed","amount":{"total":"199.00","currency":"USD"},"billing_agreement_id":"I-TESTSUB00001","custom":"own_7f3a"}}"#;

    fn transmission() -> Transmission<'static> {
        Transmission {
            id: "8e0a1c30-b6d1-11f0-9b0e-5f2c1f0a7e11",
            time: "2026-11-01T12:00:03Z",
            signature: "x",
            certificate: "x",
            algorithm: "SHA256withRSA",
        }
    }

    #[test]
    fn the_signed_text_has_the_crc_of_the_bytes_as_they_came() {
        assert_eq!(BODY.len(), 354);
        let webhook = "4JH86294D6297924G";
        assert_eq!(
            transmission().signed(webhook, BODY.as_bytes()),
            "8e0a1c30-b6d1-11f0-9b0e-5f2c1f0a7e11|2026-11-01T12:00:03Z|4JH86294D6297924G|2919701734"
        );
        let spaced = BODY.replace("\":\"", "\": \"");
        assert_eq!(crc32fast::hash(spaced.as_bytes()), 723_341_466);
    }

    #[test]
    fn old_events_and_other_algorithms_are_rejected() {
        let sent = Timestamp::from_secs(1_793_534_403);
        let second = Duration::from_secs(1);
        let at = |now| transmission().check(now);
        assert!(at(sent).is_ok());
        assert!(at(sent + AGE_MAX).is_ok());
        assert!(at(sent + AGE_MAX + second).is_err());
        assert!(at(sent - AHEAD_MAX).is_ok());
        assert!(at(sent - AHEAD_MAX - second).is_err());
        let other = Transmission {
            algorithm: "SHA1withRSA",
            ..transmission()
        };
        assert!(other.check(sent).is_err());
        let timeless = Transmission {
            time: "yesterday",
            ..transmission()
        };
        assert!(timeless.check(sent).is_err());
    }

    #[test]
    fn a_webhook_event_names_its_objects() {
        let read = |text: &str| {
            let body: Body = serde_json::from_str(text).expect("an event");
            body.read().map(|event| event.resource)
        };
        let about = |custom: Option<&str>, order: Option<&str>| Resource {
            custom_id: custom.map(str::to_owned),
            order: order.map(str::to_owned),
            ..Resource::default()
        };
        let order = r#"{"id":"WH-1","event_type":"CHECKOUT.ORDER.APPROVED",
            "resource":{"id":"ORDER","status":"APPROVED","purchase_units":[{"custom_id":"topup_1"}]}}"#;
        assert_eq!(
            read(order).expect("read"),
            about(Some("topup_1"), Some("ORDER"))
        );
        let capture = r#"{"id":"WH-2","event_type":"PAYMENT.CAPTURE.COMPLETED","resource":{"id":"CAPTURE","custom_id":"topup_1",
            "supplementary_data":{"related_ids":{"order_id":"ORDER"}}}}"#;
        assert_eq!(
            read(capture).expect("read"),
            about(Some("topup_1"), Some("ORDER"))
        );
        let sale: Body = serde_json::from_str(BODY).expect("an event");
        let sale = sale.read().expect("read").resource;
        assert_eq!(sale.subscription.as_deref(), Some("I-TESTSUB00001"));
        assert_eq!(sale.transactions, ["9AB12345CD678901E"]);
        assert_eq!(sale.order, None);
        assert!(read(r#"{"id":"","event_type":"X"}"#).is_err());
    }

    #[test]
    fn a_subscription_event_names_the_subscription_and_the_charge() {
        let read = |kind: &str, resource: &str| {
            let text = format!(r#"{{"id":"WH-4","event_type":"{kind}","resource":{resource}}}"#);
            let body: Body = serde_json::from_str(&text).expect("an event");
            body.read().expect("read").resource
        };
        let ended = read(
            "BILLING.SUBSCRIPTION.CANCELLED",
            r#"{"id":"I-BW452GLLEP1G","custom_id":"mandate_1","status":"CANCELLED"}"#,
        );
        assert_eq!(ended.subscription.as_deref(), Some("I-BW452GLLEP1G"));
        assert_eq!(ended.custom_id.as_deref(), Some("mandate_1"));
        assert!(ended.transactions.is_empty() && ended.order.is_none());
        let refund = read(
            "PAYMENT.SALE.REFUNDED",
            r#"{"id":"2RF","sale_id":"9AB","custom":"mandate_1","state":"completed"}"#,
        );
        assert_eq!(refund.transactions, ["9AB", "2RF"]);
        assert_eq!(refund.custom_id.as_deref(), Some("mandate_1"));
        let dispute = read(
            "CUSTOMER.DISPUTE.CREATED",
            r#"{"dispute_id":"PP-D-1","disputed_transactions":[{"seller_transaction_id":"9AB"},{"buyer_transaction_id":"8CD"}]}"#,
        );
        assert_eq!(dispute.transactions, ["9AB"]);
        let strange = read("BILLING.SUBSCRIPTION.UPDATED", r#"{"id":"../x"}"#);
        assert_eq!(strange.subscription, None);
    }

    #[test]
    fn a_refund_event_names_its_payment() {
        let read = |up: &str, more: &str| {
            let text = format!(
                r#"{{"id":"WH-3","event_type":"PAYMENT.CAPTURE.REFUNDED","resource_type":"refund","resource":{{
                "id":"1Y107995YT783435V","status":"COMPLETED","amount":{{"currency_code":"USD","value":"5.00"}},{more}
                "links":[{{"href":"https://api.paypal.com/v2/payments/refunds/1Y107995YT783435V","rel":"self","method":"GET"}},
                {{"href":"{up}","rel":"up","method":"GET"}}]}}}}"#
            );
            let body: Body = serde_json::from_str(&text).expect("an event");
            body.read().expect("read").resource
        };
        let payments = "https://api.paypal.com/v2/payments/captures";
        let refund = read(&format!("{payments}/0JF852973C016714D"), "");
        let expected = Resource {
            capture: Some(String::from("0JF852973C016714D")),
            ..Resource::default()
        };
        assert_eq!(refund, expected);
        let billed = read(&format!("{payments}/A1"), r#""invoice_id":"topup_1","#);
        assert_eq!(billed.invoice_id.as_deref(), Some("topup_1"));
        for strange in [
            format!("{payments}/"),
            format!("{payments}/A%20B"),
            format!("{payments}/{}", "A".repeat(CAPTURE_ID_MAX + 1)),
            String::from("https://api.paypal.com/v2/checkout/orders/ORDER"),
            String::new(),
        ] {
            assert_eq!(read(&strange, "").capture, None, "{strange}");
        }
    }
}
