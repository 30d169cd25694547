//! `POST /webhooks/paypal`: verifies, stores and acknowledges PayPal webhook notifications.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tollgate_counters::Counters;
use tollgate_filter::{ApiError, ErrorCode, Exchange, Outcome, Reply, ReplyBody, Step};
use tollgate_paypal::{Client, WebhookError};
use tollgate_purchase::mandates::{MandateNotification, Mandates};
use tollgate_purchase::{Notification, TopUps};
use tollgate_store::{CommitError, MandateSubject, TopUpSubject};

use crate::counters::WebhookResult;

/// Dependencies of PayPal webhooks.
#[derive(Clone, Debug)]
pub struct PayPal {
    /// The client that verifies signatures.
    pub client: Client,
    /// Credit purchases.
    pub top_ups: TopUps,
    pub mandates: Mandates,
}

/// Receives webhook notifications of a payment provider.
pub(crate) struct Webhooks {
    paypal: Option<PayPal>,
    counters: Arc<Counters<WebhookResult>>,
}

impl Webhooks {
    /// Without PayPal, the path is 404.
    pub(crate) fn new(paypal: Option<PayPal>) -> Webhooks {
        Webhooks {
            paypal,
            counters: Arc::default(),
        }
    }

    /// Counters of webhook notifications by result.
    pub(crate) fn counters(&self) -> Arc<Counters<WebhookResult>> {
        self.counters.clone()
    }

    /// Handles a notification.
    pub(crate) fn answer<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let Some(paypal) = &self.paypal else {
            return Step::now(Outcome::refuse(ApiError::new(
                ErrorCode::NotFound,
                "PayPal is not configured on this gateway.",
            )));
        };
        Step::later(async move {
            let request = &exchange.request;
            let status = self.receive(paypal, &request.headers, &request.body).await;
            // No body: a forged notification learns nothing.
            Ok(Outcome::reply(Reply {
                status,
                headers: HeaderMap::new(),
                body: ReplyBody::Whole(Bytes::new()),
            }))
        })
    }

    async fn receive(&self, paypal: &PayPal, headers: &HeaderMap, body: &Bytes) -> StatusCode {
        let counters = &self.counters;
        let notice = match paypal.client.verify_webhook(headers, body).await {
            Ok(notice) => notice,
            Err(WebhookError::Refused(reason)) => {
                counters.inc(WebhookResult::Refused);
                tracing::warn!(why = reason, "rejected webhook notification");
                return StatusCode::BAD_REQUEST;
            }
            Err(WebhookError::Undecided(error)) => {
                counters.inc(WebhookResult::Undecided);
                tracing::warn!(%error, "verifying webhook notification failed, awaiting redelivery");
                return StatusCode::SERVICE_UNAVAILABLE;
            }
        };
        let (id, kind) = (notice.id.clone(), notice.kind.clone());
        match paypal.deliver(notice).await {
            Ok(new) => {
                counters.inc(if new {
                    WebhookResult::Stored
                } else {
                    WebhookResult::Known
                });
                tracing::info!(notice = id, kind, new, "stored webhook notification");
                StatusCode::OK
            }
            Err(error) => {
                counters.inc(WebhookResult::Undecided);
                tracing::warn!(%error, "storing webhook notification failed, awaiting redelivery");
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

impl PayPal {
    /// Dispatches a notification: orders and captures to credit purchases, everything else to mandates.
    async fn deliver(&self, notice: tollgate_paypal::WebhookEvent) -> Result<bool, CommitError> {
        let top_up_of = top_up_of(&notice);
        if top_up_of.is_none() {
            let (mandate_notifications, top_up_notifications) = notifications(&notice);
            let event = MandateNotification {
                id: notice.id,
                kind: notice.kind,
                mandates: mandate_notifications,
                top_ups: top_up_notifications,
            };
            return self.mandates.record_notification(event).await;
        }
        let notice = Notification {
            about: top_up_of,
            id: notice.id,
            kind: notice.kind,
        };
        self.top_ups.record_notification(notice).await
    }
}

/// The mandates that a notification without an order refers to, and the purchases whose payment is disputed.
fn notifications(
    notice: &tollgate_paypal::WebhookEvent,
) -> (Vec<MandateSubject>, Vec<TopUpSubject>) {
    let resource = &notice.resource;
    let kinds = [
        "BILLING.SUBSCRIPTION.",
        "PAYMENT.SALE.",
        "CUSTOMER.DISPUTE.",
    ];
    if !kinds.iter().any(|kind| notice.kind.starts_with(kind)) {
        return (Vec::new(), Vec::new());
    }
    let custom_id = resource.custom_id.as_ref();
    let by_id = custom_id.and_then(|id| id.parse().ok());
    let subscription = resource.subscription.as_deref();
    let payments = || resource.transactions.iter().map(|id| id.as_str().into());
    // One notification per mandate suffices; the most specific identifier comes first.
    let named = by_id
        .map(MandateSubject::Mandate)
        .or_else(|| subscription.map(|id| MandateSubject::Subscription(id.into())));
    let mandates = match named {
        Some(ring) => vec![ring],
        None => payments().map(MandateSubject::Payment).collect(),
    };
    let top_ups = match notice.kind.starts_with("CUSTOMER.DISPUTE.") {
        true => payments().map(TopUpSubject::Capture).collect(),
        false => Vec::new(),
    };
    (mandates, top_ups)
}

/// The purchase that a notification refers to. The value comes from PayPal and is only used to find a row.
fn top_up_of(notice: &tollgate_paypal::WebhookEvent) -> Option<TopUpSubject> {
    let is_payment = ["CHECKOUT.ORDER.", "PAYMENT.CAPTURE."]
        .iter()
        .any(|kind| notice.kind.starts_with(kind));
    if !is_payment {
        return None;
    }
    let resource = &notice.resource;
    // A refund carries the invoice id at most, or only a link to the payment.
    let mut names = [&resource.custom_id, &resource.invoice_id]
        .into_iter()
        .flatten();
    let by_id = names.find_map(|id| id.parse().ok());
    let order = resource.order.as_deref();
    let capture = resource.capture.as_deref();
    by_id
        .map(TopUpSubject::TopUp)
        .or_else(|| order.map(|order| TopUpSubject::Order(order.into())))
        .or_else(|| capture.map(|capture| TopUpSubject::Capture(capture.into())))
}
