//! `POST /webhooks/paypal`: a notice is checked, stored, and answered.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tollgate_filter::{ApiError, ErrorCode, Exchange, Outcome, Reply, ReplyBody, Step};
use tollgate_paypal::{Client, WebhookError};
use tollgate_purchase::mandates::{MandateNotification, Mandates};
use tollgate_purchase::{Notification, TopUps};
use tollgate_store::{CommitError, MandateSubject, TopUpSubject};

use crate::counters::WebhookCounters;

/// What notices of PayPal's need.
#[derive(Clone, Debug)]
pub struct PayPal {
    /// Who can tell a notice from a forgery.
    pub client: Client,
    /// Who is told of purchases of credits; `None` where none are sold.
    pub top_ups: Option<TopUps>,
    /// Who is told of mandates; `None` where the plan is not sold through PayPal.
    pub mandates: Mandates,
}

/// Takes the notices of a payment provider.
pub(crate) struct Webhooks {
    paypal: Option<PayPal>,
    counters: Arc<WebhookCounters>,
}

impl Webhooks {
    /// Without PayPal there is nothing at its address.
    pub(crate) fn new(paypal: Option<PayPal>) -> Webhooks {
        Webhooks {
            paypal,
            counters: Arc::default(),
        }
    }

    /// What became of notices.
    pub(crate) fn counters(&self) -> Arc<WebhookCounters> {
        self.counters.clone()
    }

    /// The answer to a notice.
    pub(crate) fn answer<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let Some(paypal) = &self.paypal else {
            return Step::now(Outcome::refuse(ApiError::new(
                ErrorCode::NotFound,
                "Nothing is paid with PayPal here.",
            )));
        };
        Step::later(async move {
            let request = &exchange.request;
            let status = self.receive(paypal, &request.headers, &request.body).await;
            // Without a body: whoever sends forgeries learns nothing.
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
                WebhookCounters::increment(&counters.refused);
                tracing::warn!(
                    why = reason,
                    "a notice that claims to be PayPal's is not believed"
                );
                return StatusCode::BAD_REQUEST;
            }
            Err(WebhookError::Undecided(error)) => {
                WebhookCounters::increment(&counters.undecided);
                tracing::warn!(%error, "a notice could not be checked; it has to come again");
                return StatusCode::SERVICE_UNAVAILABLE;
            }
        };
        let (id, kind) = (notice.id.clone(), notice.kind.clone());
        match paypal.deliver(notice).await {
            Ok(new) => {
                let counter = if new {
                    &counters.stored
                } else {
                    &counters.known
                };
                WebhookCounters::increment(counter);
                tracing::info!(notice = id, kind, new, "a notice of PayPal's");
                StatusCode::OK
            }
            Err(error) => {
                WebhookCounters::increment(&counters.undecided);
                tracing::warn!(%error, "a notice could not be stored; it has to come again");
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

impl PayPal {
    /// Hands a notice to whoever it is for: purchases of credits hear of orders and captures, mandates of everything else.
    async fn deliver(&self, notice: tollgate_paypal::WebhookEvent) -> Result<bool, CommitError> {
        let top_up_of = top_up_of(&notice);
        match &self.top_ups {
            _ if top_up_of.is_none() => {
                let (mandate_notifications, top_up_notifications) = notifications(&notice);
                let event = MandateNotification {
                    id: notice.id,
                    kind: notice.kind,
                    mandates: mandate_notifications,
                    top_ups: top_up_notifications,
                };
                self.mandates.record_notification(event).await
            }
            Some(top_ups) => {
                let notice = Notification {
                    about: top_up_of,
                    id: notice.id,
                    kind: notice.kind,
                };
                top_ups.record_notification(notice).await
            }
            // Nobody sells what it is about.
            None => Ok(true),
        }
    }
}

/// What a notice that is about no order seems to be about: mandates, and purchases whose payment a buyer objects to.
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
    // One ring for one mandate is enough, and the surest name comes first.
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

/// The purchase a notice seems to be about. It was told by PayPal, and is used to find a row and for nothing else.
fn top_up_of(notice: &tollgate_paypal::WebhookEvent) -> Option<TopUpSubject> {
    let is_payment = ["CHECKOUT.ORDER.", "PAYMENT.CAPTURE."]
        .iter()
        .any(|kind| notice.kind.starts_with(kind));
    if !is_payment {
        return None;
    }
    let resource = &notice.resource;
    // A refund has the number of the bill at most, and else only a link to the payment.
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
