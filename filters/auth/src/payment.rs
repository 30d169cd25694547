//! Two credentials in one request: a bearer credential for the account, and a payment credential.
//!
//! Only routes with payment in `Authorization` have this filter; elsewhere the field holds the account's credential alone.

use http::{HeaderMap, HeaderName, header};
use tollgate_filter::{
    Contract, Exchange, Filter, FilterError, Outcome, PaymentCredential, PaymentField, Principal,
    Step,
};

use tollgate_identity::Digest;

use crate::Auth;
use crate::bearer::{Presented, Unreadable, scheme};
use crate::refusal::Refusal;

/// The scheme of a payment credential.
const PAYMENT: &[u8] = b"Payment";

/// The dedicated field that later versions of the scheme define.
const PAYMENT_AUTHORIZATION: HeaderName = HeaderName::from_static("payment-authorization");

/// [`Auth`] for a route on which `Authorization` may hold a payment credential: the account's credential is then in a field with the
/// service's name.
pub struct PaymentAuth {
    auth: Auth,
    /// `x-svc-authorization`
    other_field: HeaderName,
    /// The field's name in display case.
    beside_name: Box<str>,
}

/// Both credentials of a request, separated.
pub(crate) struct Both<'a> {
    bearer: Presented<'a>,
    payment: Option<PaymentCredential>,
}

impl PaymentAuth {
    pub(crate) fn new(auth: Auth, service: &str) -> PaymentAuth {
        let mut word = service.to_owned();
        if let Some(first) = word.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        let beside_name = format!("X-{word}-Authorization");
        PaymentAuth {
            auth,
            other_field: HeaderName::try_from(&*beside_name)
                .expect("a service is named with letters and digits"),
            beside_name: beside_name.into(),
        }
    }

    /// The digest of the account's credential, and the payment credential.
    fn separate(
        &self,
        exchange: &Exchange,
    ) -> Result<(Digest, Option<PaymentCredential>), Refusal> {
        let request = &exchange.request;
        let Both { bearer, payment } = both(&request.headers, &self.other_field)?;
        let digest = self.auth.digest_of(request, bearer)?;
        Ok((digest, payment))
    }

    fn decide(
        &self,
        exchange: &mut Exchange,
        judged: Result<Principal, Refusal>,
        payment: Option<PaymentCredential>,
    ) -> Result<Outcome, FilterError> {
        Ok(match judged {
            Ok(principal) => {
                exchange.put(principal);
                if let Some(payment) = payment {
                    exchange.put(payment);
                }
                Outcome::Continue
            }
            Err(refusal) => self
                .auth
                .refuse(refusal, &exchange.request, &self.beside_name),
        })
    }
}

/// Separates the two credentials, in any of their fields.
pub(crate) fn both<'a>(
    headers: &'a HeaderMap,
    other_field: &HeaderName,
) -> Result<Both<'a>, Refusal> {
    let payments: Vec<PaymentCredential> = [
        (header::AUTHORIZATION, PaymentField::Authorization),
        (PAYMENT_AUTHORIZATION, PaymentField::PaymentAuthorization),
    ]
    .iter()
    .flat_map(|(name, field)| {
        let values = headers.get_all(name).iter();
        values.filter_map(|value| payment(value.as_bytes(), *field))
    })
    .collect();
    let in_place = |payment: &PaymentCredential| payment.field == PaymentField::Authorization;
    let instead = payments.iter().any(in_place);
    if payments.len() > 1 || payments.iter().any(holds_another) {
        return Err(Refusal::PaymentTwice);
    }
    let there = Presented::read(headers);
    if there == Presented::Unreadable(Unreadable::Twice) {
        return Err(Refusal::Unreadable(Unreadable::Twice));
    }
    let second = match single(headers, other_field)? {
        None if instead => return Err(Refusal::OnlyPayment),
        None => None,
        Some(field) => match Presented::of(field) {
            Presented::Text(text) => Some(text),
            Presented::Nothing | Presented::Unreadable(_) => return Err(Refusal::NoBearer),
        },
    };
    let bearer = match (second, there) {
        (Some(second), _) if instead => Presented::Text(second),
        (Some(second), Presented::Text(first)) if first != second => return Err(Refusal::Differ),
        // Without a payment credential, `Authorization` alone identifies the account.
        (_, there) => there,
    };
    Ok(Both {
        bearer,
        payment: payments.into_iter().next(),
    })
}

/// The payment credential in the value of a field, if any. The text after the scheme is not parsed: a malformed credential fails
/// verification.
fn payment(value: &[u8], field: PaymentField) -> Option<PaymentCredential> {
    let (scheme, rest) = scheme(value);
    scheme
        .eq_ignore_ascii_case(PAYMENT)
        .then(|| PaymentCredential {
            text: String::from_utf8_lossy(rest.trim_ascii()).into(),
            field,
        })
}

/// Whether the field holds a second payment credential. An intermediary joins two values with a comma, which no payment credential
/// contains.
fn holds_another(payment: &PaymentCredential) -> bool {
    payment.text.split(',').skip(1).any(|piece| {
        let (scheme, _) = scheme(piece.trim_ascii_start().as_bytes());
        scheme.eq_ignore_ascii_case(PAYMENT)
    })
}

/// The single value of a field.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => Ok(Some(value.as_bytes())),
        (Some(_), Some(_)) => Err(Refusal::NoBearer),
    }
}

impl Filter for PaymentAuth {
    fn name(&self) -> &'static str {
        self.auth.name()
    }

    fn contract(&self) -> Contract {
        self.auth.contract()
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let (digest, payment) = match self.separate(exchange) {
            Ok(separated) => separated,
            Err(refusal) => return Step::Now(self.decide(exchange, Err(refusal), None)),
        };
        let now = self.auth.now(exchange);
        if let Some(credential) = self.auth.find(&digest) {
            let judged = self.auth.judge(&credential, now);
            return Step::Now(self.decide(exchange, judged, payment));
        }
        Step::later(async move {
            let client = exchange.request.client;
            let found = self.auth.look_up(digest, client, now).await;
            exchange.invalidate_now();
            let now = self.auth.now(exchange);
            let judged = found.and_then(|credential| self.auth.judge(&credential, now));
            self.decide(exchange, judged, payment)
        })
    }
}
