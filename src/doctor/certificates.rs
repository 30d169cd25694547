//! Certificates from files, which the settings have read, and certificates that ACME orders have stored.

use std::sync::Arc;

use tollgate_clock::{Clock, Timestamp};
use tollgate_store::{AcmeCertificateRow, OpenError};

use super::checks::Checks;
use super::finding::Finding;
use crate::config::{AcmeOrder, Certificate, EXPIRY_WARNING, Settings};
use crate::database;

/// The certificates of listeners and of the admin address from files.
pub(super) fn of_files(settings: &Settings, now: Timestamp) -> Vec<Finding> {
    let admin = settings.admin.tls.iter().map(|tls| &tls.certificate);
    let all = settings.certificates().chain(admin);
    all.map(|one| of_file(one, now)).collect()
}

fn of_file(certificate: &Certificate, now: Timestamp) -> Finding {
    let name = format!("certificate {}", certificate.label());
    let measured = format!("its key matches; {}", validity(certificate.expires_at, now));
    match certificate.expires_at <= now {
        true => Finding::failed(name, measured).remedy(
            "clients refuse to connect; renew it: new files in its place are used within seconds",
        ),
        false => Finding::ok(name, measured),
    }
}

fn validity(expires_at: Timestamp, now: Timestamp) -> String {
    let days = (expires_at.as_secs() - now.as_secs()).div_euclid(24 * 3600);
    format!("valid until {}, {days} days", expires_at.rfc3339())
}

/// Starts the check of each certificate by ACME.
pub(super) fn start(checks: &mut Checks, settings: &Arc<Settings>) {
    for order in settings.acme_orders() {
        let (settings, order, clock) = (settings.clone(), order.clone(), checks.clock.clone());
        let name = format!("certificate {}", order.label());
        checks.start_blocking(name.clone(), move || {
            stored(name, &settings, &order, &clock)
        });
    }
}

fn stored(name: String, settings: &Settings, order: &AcmeOrder, clock: &Clock) -> Finding {
    let entropy = tollgate_clock::Entropy::system();
    let opener = database::Opener {
        name: "doctor",
        clock,
        entropy: &entropy,
    };
    let row = match database::open_read(&settings.store, &opener) {
        Ok(store) => store.acme_certificate(&order.id()),
        Err(OpenError::Missing { .. }) => Ok(None),
        // The check of the database has the error.
        Err(_) => return Finding::skipped(name, "the database cannot be opened"),
    };
    match row {
        Ok(row) => of_row(name, row.as_ref(), clock.now()),
        Err(error) => Finding::skipped(name, error.to_string()),
    }
}

fn of_row(name: String, row: Option<&AcmeCertificateRow>, now: Timestamp) -> Finding {
    let failures = row.map_or(0, |row| row.failures);
    let note = row.and_then(|row| row.note.as_deref());
    let failed = match note {
        Some(note) if failures > 0 => format!("; the last of {failures} orders failed: {note}"),
        _ => String::new(),
    };
    let remedy = "see `docs/certificates.md`, \"ACME\", and the gateway's log";
    let Some((row, expires_at)) = row.and_then(|row| Some((row, row.expires_at?))) else {
        let measured = format!("none is stored{failed}");
        return match failures {
            0 => Finding::warning(name, measured).remedy("the gateway orders it when it serves"),
            _ => Finding::failed(name, measured).remedy(remedy),
        };
    };
    let measured = format!("{}{failed}", validity(expires_at, now));
    // Half of the time between the renewal and the end of the certificate.
    let renewal = row.renew_at.map(|at| expires_at.duration_since(at) / 2);
    let before = EXPIRY_WARNING.min(renewal.unwrap_or(EXPIRY_WARNING));
    match () {
        () if expires_at <= now => Finding::failed(name, measured).remedy(remedy),
        () if expires_at <= now + before || failures > 0 => {
            Finding::warning(name, measured).remedy(remedy)
        }
        () => Finding::ok(name, measured),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    const DAY: i64 = 24 * 3600;

    #[test]
    fn a_stored_certificate_is_judged_by_its_end_and_by_failed_orders() {
        let now = Timestamp::from_secs(1_800_000_000);
        let at = |days: i64| Timestamp::from_secs(now.as_secs() + days * DAY);
        let row = |days: Option<i64>, failures: u32| AcmeCertificateRow {
            id: [7; 32],
            directory: "https://ca.example/directory".into(),
            names: "api.example.net".into(),
            version: 1,
            sealed: days.map(|_| Arc::from(&b"sealed"[..])),
            expires_at: days.map(at),
            renew_at: days.map(|days| at(days - 30)),
            failures,
            next_attempt_at: now,
            note: (failures > 0).then(|| "could not validate".into()),
            created_at: now,
            updated_at: now,
        };
        for (row, status, text) in [
            (None, Status::Warning, "none is stored"),
            (Some(row(None, 0)), Status::Warning, "none is stored"),
            (Some(row(None, 2)), Status::Failed, "could not validate"),
            (Some(row(Some(60), 0)), Status::Ok, "60 days"),
            (
                Some(row(Some(60), 1)),
                Status::Warning,
                "could not validate",
            ),
            (Some(row(Some(15), 0)), Status::Ok, "15 days"),
            (Some(row(Some(13), 0)), Status::Warning, "13 days"),
            (Some(row(Some(0), 0)), Status::Failed, "valid until"),
        ] {
            let found = of_row("certificate".to_owned(), row.as_ref(), now);
            assert_eq!(found.status, status, "{found}");
            assert!(found.measured.contains(text), "{found}");
            assert_eq!(found.remedy.is_some(), status != Status::Ok, "{found}");
        }
    }
}
