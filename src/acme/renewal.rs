//! The task of a certificate: when the certificate is ordered, and the results of an order's end.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Backoff, Entropy, Jitter, Timestamp};
use tollgate_store::{AcmeCertificateRow, AcmePart, CommitError};

use super::Context;
use super::order::{self, Issued, OrderError};
use super::status::OrderResult;
use crate::config::{AcmeOrder, Certificate};
use crate::telemetry;

/// Time limit of an attempt.
pub(super) const ATTEMPT_MAX: Duration = Duration::from_secs(240);

/// Time without another attempt after an attempt with an unknown end, because its process has ended. The time is longer than an attempt.
const LEASE: Duration = Duration::from_secs(300);

/// Upper bound of the backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(24 * 3600);

/// Interval at which the row is read again. A wrong clock is noticed within the interval.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// Interval at which the row is read while another process may be obtaining the certificate. The certificate is in use within the interval.
const CLAIMED_INTERVAL: Duration = Duration::from_secs(1);

/// Wait after a failure of the store.
const STORE_BACKOFF: Duration = Duration::from_secs(10);

/// Interval at which the authority is asked for renewal information, unless the authority names an interval (RFC 9773 section 4.3).
const INFORMATION_INTERVAL: Duration = Duration::from_secs(6 * 3600);
const INFORMATION_INTERVALS: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(24 * 3600));

/// How long a certificate is kept after its end.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A certificate and its attempts.
struct Maintained {
    context: Arc<Context>,
    order: Arc<AcmeOrder>,
    /// The version of the row whose certificate is in use.
    installed: Option<i64>,
    certificate: Option<Certificate>,
    /// Whether the authority has renewal information.
    has_information: bool,
    information_at: Timestamp,
}

/// Obtains a certificate, and renews the certificate, until a cancellation.
pub(super) async fn maintain(context: Arc<Context>, order: Arc<AcmeOrder>) {
    let mut maintained = Maintained {
        information_at: context.deps.clock.now(),
        context,
        order,
        installed: None,
        certificate: None,
        has_information: false,
    };
    maintained.install_fallback().await;
    loop {
        let wait = match maintained.step().await {
            Ok(wait) => wait,
            Err(cause) => {
                tracing::error!(certificate = %maintained.order.label(), %cause, "reading or storing certificate failed, retrying");
                STORE_BACKOFF
            }
        };
        tokio::time::sleep(wait).await;
    }
}

impl Maintained {
    fn now(&self) -> Timestamp {
        self.context.deps.clock.now()
    }

    /// Uses the stored certificate with most of the names, until a certificate covers every name.
    async fn install_fallback(&self) {
        let now = self.now();
        let found = self.context.records.best_of(&self.order, now).await;
        if let Ok(Some(certificate)) = found {
            self.context.install(&self.order, certificate);
        }
    }

    /// Orders if an order is due. Returns the time until the next step.
    async fn step(&mut self) -> Result<Duration, String> {
        let row = self.context.records.row(&self.order).await;
        let row = row.map_err(|error| telemetry::chain(&error))?;
        if let Some(row) = &row {
            self.load(row);
        }
        let now = self.now();
        let due = row
            .as_ref()
            .map_or(now, |row| due_at(row, &self.certificate));
        if now < due {
            if let Some(row) = &row
                && self.ask_for_information(row, now).await
            {
                return Ok(Duration::ZERO);
            }
            let interval = match &row {
                Some(row) if now < row.updated_at + LEASE => CLAIMED_INTERVAL,
                _ => READ_INTERVAL,
            };
            let wait = due.duration_since(self.now());
            return Ok(wait.clamp(Duration::from_millis(10), interval));
        }
        let Some(begun) = self.claim(row.as_ref(), now).await? else {
            // Another process was first.
            return Ok(Duration::from_secs(1));
        };
        let replaced = self.certificate.clone().filter(|_| self.has_information);
        let attempt = order::obtain(&self.context, &self.order, replaced.as_ref());
        let issued = tokio::time::timeout(ATTEMPT_MAX, attempt).await;
        let issued = issued.unwrap_or_else(|_| {
            Err(OrderError {
                cause: String::from("the authority has not issued the certificate in time"),
                retry_after: None,
            })
        });
        if self.context.deps.store.has_allotments() {
            let id = begun.id;
            let delete = AcmePart::DeleteChallenges { id };
            if let Err(error) = self.context.records.write(delete).await {
                tracing::debug!(%error, "deleting responses to challenges failed, they expire");
            }
        }
        match issued {
            Ok(issued) => self.succeeded(begun, issued).await?,
            Err(error) => self.failed(begun, error).await?,
        }
        Ok(Duration::ZERO)
    }

    /// Uses the content of a row.
    fn load(&mut self, row: &AcmeCertificateRow) {
        let status = &self.context.status;
        let failures = match row.note {
            // The first attempt is under way.
            None => row.failures.saturating_sub(1),
            Some(_) => row.failures,
        };
        status.attempts(&self.order, failures, row.note.clone());
        if self.installed == Some(row.version) {
            return;
        }
        self.installed = Some(row.version);
        if let Some(certificate) = self.context.records.certificate(&self.order, row) {
            let is_same = self.certificate.as_ref().is_some_and(|own| {
                own.key.end_entity_cert().ok() == certificate.key.end_entity_cert().ok()
            });
            if !is_same {
                self.certificate = Some(certificate.clone());
                self.context.install(&self.order, certificate);
            }
        }
    }

    /// Begins an attempt. The attempt counts as failed until its success. `None` where another process has begun an attempt.
    async fn claim(
        &self,
        row: Option<&AcmeCertificateRow>,
        now: Timestamp,
    ) -> Result<Option<AcmeCertificateRow>, String> {
        let order = &self.order;
        let begun = match row {
            Some(row) => AcmeCertificateRow {
                version: row.version + 1,
                failures: row.failures.saturating_add(1),
                next_attempt_at: now + LEASE.max(backoff(order.retry, row.failures + 1)),
                updated_at: now,
                ..row.clone()
            },
            None => AcmeCertificateRow {
                id: order.id(),
                directory: order.directory.clone(),
                names: order.names.join(" ").into(),
                version: 0,
                sealed: None,
                expires_at: None,
                renew_at: None,
                failures: 1,
                next_attempt_at: now + LEASE.max(order.retry),
                note: None,
                created_at: now,
                updated_at: now,
            },
        };
        let part = match row {
            Some(_) => AcmePart::ReplaceCertificate(begun.clone()),
            None => AcmePart::InsertCertificate(begun.clone()),
        };
        match self.context.records.write(part).await {
            Ok(()) => Ok(Some(begun)),
            Err(CommitError::Refused(_)) => Ok(None),
            Err(error) => Err(telemetry::chain(&error)),
        }
    }

    async fn succeeded(&mut self, begun: AcmeCertificateRow, issued: Issued) -> Result<(), String> {
        let now = self.now();
        let certificate = issued.certificate;
        let renew_at = renew_at(&certificate, &self.context.deps.entropy);
        let row = AcmeCertificateRow {
            version: begun.version + 1,
            sealed: Some(
                self.context
                    .records
                    .seal(&begun.id, issued.chain, &issued.key),
            ),
            expires_at: Some(certificate.expires_at),
            renew_at: Some(renew_at),
            failures: 0,
            next_attempt_at: now,
            note: None,
            updated_at: now,
            ..begun
        };
        let written = self
            .context
            .records
            .write(AcmePart::ReplaceCertificate(row));
        written.await.map_err(|error| telemetry::chain(&error))?;
        self.context.status.ended(OrderResult::Issued);
        tracing::info!(
            certificate = %self.order.label(),
            names = %self.order.names.join(" "),
            expires_at = %certificate.expires_at.rfc3339(),
            renew_at = %renew_at.rfc3339(),
            "obtained certificate"
        );
        // Not immediately: an authority that suggests a past time for each certificate would get order after order.
        self.information_at = now + INFORMATION_INTERVAL;
        let before = Timestamp::from_micros(now.as_micros() - KEPT.as_micros() as i64);
        let forget = self.context.records.write(AcmePart::Forget { before });
        if let Err(error) = forget.await {
            tracing::debug!(%error, "deleting expired certificates failed");
        }
        Ok(())
    }

    async fn failed(&self, begun: AcmeCertificateRow, error: OrderError) -> Result<(), String> {
        let now = self.now();
        let wait = jittered(
            backoff(self.order.retry, begun.failures),
            &self.context.deps.entropy,
        );
        let wait = error.retry_after.map_or(wait, |least| least.max(wait));
        let next_attempt_at = now + wait;
        let failures = begun.failures;
        let cause: Arc<str> = error.cause.into();
        let row = AcmeCertificateRow {
            version: begun.version + 1,
            next_attempt_at,
            note: Some(cause.clone()),
            updated_at: now,
            ..begun
        };
        // Before the log line: an operator who restarts the gateway after the line must not wait for the lease of an ended attempt.
        let written = self
            .context
            .records
            .write(AcmePart::ReplaceCertificate(row))
            .await;
        self.context.status.ended(OrderResult::Failed);
        tracing::warn!(
            certificate = %self.order.label(),
            %cause,
            failures,
            next_attempt_at = %next_attempt_at.rfc3339(),
            "obtaining certificate failed, retrying"
        );
        written.map_err(|error| telemetry::chain(&error))
    }

    /// Moves the renewal into the window that the authority suggests (RFC 9773 section 4.2). Returns whether the renewal was moved.
    async fn ask_for_information(&mut self, row: &AcmeCertificateRow, now: Timestamp) -> bool {
        let Some(certificate) = self.certificate.clone() else {
            return false;
        };
        if now < self.information_at {
            return false;
        }
        self.information_at = now + INFORMATION_INTERVAL;
        let Some(id) = order::identifier(&certificate) else {
            return false;
        };
        let label = self.order.label();
        let account = match order::open_account(&self.context, &self.order).await {
            Ok(account) => account,
            Err(cause) => {
                tracing::debug!(certificate = %label, %cause, "reading renewal information failed");
                return false;
            }
        };
        let (information, again) = match account.renewal_info(&id).await {
            Ok(found) => found,
            Err(instant_acme::Error::Unsupported(_)) => {
                self.information_at = now + INFORMATION_INTERVALS.1;
                return false;
            }
            Err(error) => {
                tracing::debug!(certificate = %label, %error, "reading renewal information failed");
                return false;
            }
        };
        self.has_information = true;
        let (least, most) = INFORMATION_INTERVALS;
        self.information_at = now + again.clamp(least, most);
        let window = information.suggested_window;
        let time = |at: i64| Timestamp::from_secs(at);
        let (start, end) = (
            time(window.start.unix_timestamp()),
            time(window.end.unix_timestamp()),
        );
        if row.renew_at.is_some_and(|at| start <= at && at <= end) || end < start {
            return false;
        }
        let chosen = start + fraction(end.duration_since(start), &self.context.deps.entropy);
        // The chosen time leaves time for failures.
        let lifetime = certificate.expires_at.duration_since(certificate.begins_at);
        let chosen = chosen.min(earlier(certificate.expires_at, lifetime / 6));
        tracing::info!(certificate = %label, renew_at = %chosen.rfc3339(), "the authority suggests another time of renewal");
        let part = AcmePart::ReplaceCertificate(AcmeCertificateRow {
            version: row.version + 1,
            renew_at: Some(chosen),
            updated_at: now,
            ..row.clone()
        });
        let written = self.context.records.write(part).await;
        let written =
            written.inspect_err(|error| tracing::debug!(%error, "storing time of renewal failed"));
        written.is_ok()
    }
}

/// When the next attempt begins: immediately without a usable certificate, else at the certificate's renewal; never before the end of the
/// backoff.
fn due_at(row: &AcmeCertificateRow, certificate: &Option<Certificate>) -> Timestamp {
    match (certificate, row.renew_at) {
        (Some(_), Some(renew_at)) => renew_at.max(row.next_attempt_at),
        _ => row.next_attempt_at,
    }
}

/// Exponential backoff: the wait after this number of failures.
fn backoff(first: Duration, failures: u32) -> Duration {
    let backoff = Backoff {
        base: first,
        max: BACKOFF_MAX,
        jitter: Jitter::None,
    };
    backoff.exact(failures.saturating_sub(1))
}

/// When a certificate is renewed: a third of its lifetime before its end, and up to a thirtieth earlier. The random part keeps certificates
/// obtained together from a renewal together.
fn renew_at(certificate: &Certificate, entropy: &Entropy) -> Timestamp {
    let lifetime = certificate.expires_at.duration_since(certificate.begins_at);
    let before = lifetime / 3 + fraction(lifetime / 30, entropy);
    earlier(certificate.expires_at, before)
}

/// A wait, or up to a quarter more.
fn jittered(wait: Duration, entropy: &Entropy) -> Duration {
    wait + fraction(wait / 4, entropy)
}

/// A random part of a duration.
fn fraction(of: Duration, entropy: &Entropy) -> Duration {
    let micros = u64::try_from(of.as_micros()).unwrap_or(u64::MAX);
    let random = u64::from_le_bytes(entropy.bytes());
    Duration::from_micros(random.checked_rem(micros.saturating_add(1)).unwrap_or(0))
}

fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(at.as_micros().saturating_sub(micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acme::records;

    #[test]
    fn the_backoff_doubles_up_to_a_day() {
        //  first, failures, wait in seconds
        for (first, failures, wait) in [
            (300, 1, 300),
            (300, 2, 600),
            (300, 5, 4800),
            (300, 9, 76_800),
            (300, 10, 86_400),
            (300, u32::MAX, 86_400),
            (1, 3, 4),
        ] {
            let found = backoff(Duration::from_secs(first), failures);
            assert_eq!(found, Duration::from_secs(wait), "{first} {failures}");
        }
    }

    #[test]
    fn jitter_makes_a_wait_longer_by_a_quarter_at_most() {
        let entropy = Entropy::seeded(7);
        let wait = Duration::from_secs(100);
        let found: Vec<_> = (0..100).map(|_| jittered(wait, &entropy)).collect();
        assert!(found.iter().all(|one| *one >= wait && *one <= wait * 5 / 4));
        assert!(found.iter().any(|one| *one > wait * 9 / 8));
        assert_eq!(fraction(Duration::ZERO, &entropy), Duration::ZERO);
    }

    #[test]
    fn a_certificate_is_renewed_a_third_of_its_lifetime_before_its_end() {
        let made = tollgate_testing::Certificate::until(&["a.example"], (2030, 1, 1));
        let key = rcgen_key(&made.key_pem);
        let order = order();
        let certificate = records::parse(&order, made.cert_pem.as_bytes(), key).expect("good");
        let lifetime = certificate.expires_at.duration_since(certificate.begins_at);
        let entropy = Entropy::seeded(7);
        for _ in 0..100 {
            let left = certificate
                .expires_at
                .duration_since(renew_at(&certificate, &entropy));
            assert!(left >= lifetime / 3, "{left:?} of {lifetime:?}");
            assert!(left <= lifetime / 3 + lifetime / 30, "{left:?}");
        }
    }

    fn rcgen_key(pem: &str) -> Vec<u8> {
        let key = rcgen::KeyPair::from_pem(pem).expect("a key");
        key.serialize_der()
    }

    fn order() -> AcmeOrder {
        AcmeOrder {
            names: vec!["a.example".into()],
            contact: Vec::new(),
            directory: "https://ca.example/directory".into(),
            roots: None,
            challenge: crate::config::AcmeChallenge::Http01,
            external_account: None,
            retry: Duration::from_secs(300),
        }
    }
}
