//! Accounts at certificate authorities, and certificates. Rare: the statements are prepared on use.

use std::sync::LazyLock;

use tollgate_clock::Timestamp;

use super::versioned::VersionedTable;
use crate::acme::{AcmeAccountRow, AcmeCertificateRow, AcmeChallengesRow, AcmePart};
use crate::engine::{RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::reader::Reader;

static ACCOUNTS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "acme_accounts",
        "directory, key_id, version, sealed, created_at, updated_at",
        "directory, key_id",
        &[],
    )
});

static CERTIFICATES: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "acme_certificates",
        "id, directory, names, version, sealed, expires_at, renew_at, failures, next_attempt_at, note, created_at, updated_at",
        "id, directory, names",
        &[],
    )
});

pub(crate) fn write(connection: &dyn Sql, part: &AcmePart) -> Result<(), WriteError> {
    const MOVED: Refusal = Refusal::AcmeConflict;
    match part {
        AcmePart::InsertAccount(row) => ACCOUNTS.insert(connection, &account_values(row), MOVED),
        AcmePart::ReplaceAccount(row) => {
            ACCOUNTS.replace(connection, &account_values(row), MOVED, MOVED)
        }
        AcmePart::InsertCertificate(row) => {
            CERTIFICATES.insert(connection, &certificate_values(row), MOVED)
        }
        AcmePart::ReplaceCertificate(row) => {
            CERTIFICATES.replace(connection, &certificate_values(row), MOVED, MOVED)
        }
        AcmePart::StoreChallenges(row) => {
            delete_challenges(connection, &row.id)?;
            let sql = "INSERT INTO acme_challenges (id, sealed, expires_at) VALUES (?1, ?2, ?3)";
            connection.execute(sql, values![row.id, row.sealed, row.expires_at])?;
            Ok(())
        }
        AcmePart::DeleteChallenges { id } => delete_challenges(connection, id),
        AcmePart::Forget { before } => {
            let sql = "DELETE FROM acme_challenges WHERE expires_at < ?1";
            connection.execute(sql, values![before])?;
            let sql = "DELETE FROM acme_certificates WHERE coalesce(expires_at, updated_at) < ?1 AND updated_at < ?1";
            connection.execute(sql, values![before])?;
            Ok(())
        }
    }
}

fn delete_challenges(connection: &dyn Sql, id: &[u8; 32]) -> Result<(), WriteError> {
    connection.execute("DELETE FROM acme_challenges WHERE id = ?1", values![id])?;
    Ok(())
}

fn account_values(row: &AcmeAccountRow) -> [Value<'_>; 6] {
    *values![
        row.directory,
        row.key_id,
        row.version,
        row.sealed,
        row.created_at,
        row.updated_at,
    ]
}

fn account(row: &dyn SqlRow) -> Result<AcmeAccountRow, RowError> {
    Ok(AcmeAccountRow {
        directory: row.get(0)?,
        key_id: row.get(1)?,
        version: row.get(2)?,
        sealed: row.get(3)?,
        created_at: row.get(4)?,
        updated_at: row.get(5)?,
    })
}

fn certificate_values(row: &AcmeCertificateRow) -> [Value<'_>; 12] {
    *values![
        row.id,
        row.directory,
        row.names,
        row.version,
        row.sealed,
        row.expires_at,
        row.renew_at,
        row.failures,
        row.next_attempt_at,
        row.note,
        row.created_at,
        row.updated_at,
    ]
}

fn certificate(row: &dyn SqlRow) -> Result<AcmeCertificateRow, RowError> {
    Ok(AcmeCertificateRow {
        id: row.get(0)?,
        directory: row.get(1)?,
        names: row.get(2)?,
        version: row.get(3)?,
        sealed: row.get(4)?,
        expires_at: row.get(5)?,
        renew_at: row.get(6)?,
        failures: row.get(7)?,
        next_attempt_at: row.get(8)?,
        note: row.get(9)?,
        created_at: row.get(10)?,
        updated_at: row.get(11)?,
    })
}

impl Reader {
    fn some_acme_certificates(
        &self,
        which: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<AcmeCertificateRow>, ReadError> {
        let sql = format!(
            "SELECT {} FROM acme_certificates {which}",
            CERTIFICATES.columns
        );
        self.with("certificates", |connection| {
            connection.all(&sql, values, certificate)
        })
    }
}

impl Reader {
    /// The account at a directory, bound to the external account (empty for no external account).
    pub fn acme_account(
        &self,
        directory: &str,
        key_id: &str,
    ) -> Result<Option<AcmeAccountRow>, ReadError> {
        let sql = format!(
            "SELECT {} FROM acme_accounts WHERE directory = ?1 AND key_id = ?2",
            ACCOUNTS.columns
        );
        self.with("accounts at certificate authorities", |connection| {
            connection.first(&sql, values![directory, key_id], account)
        })
    }

    /// A certificate.
    pub fn acme_certificate(&self, id: &[u8; 32]) -> Result<Option<AcmeCertificateRow>, ReadError> {
        let found = self.some_acme_certificates("WHERE id = ?1", values![id])?;
        Ok(found.into_iter().next())
    }

    /// All certificates issued by a directory, the latest expiry first.
    pub fn acme_certificates(&self, directory: &str) -> Result<Vec<AcmeCertificateRow>, ReadError> {
        self.some_acme_certificates(
            "WHERE directory = ?1 AND sealed IS NOT NULL ORDER BY expires_at DESC",
            values![directory],
        )
    }

    /// The responses of all orders that are not over before `now`.
    pub fn acme_challenges(&self, now: Timestamp) -> Result<Vec<AcmeChallengesRow>, ReadError> {
        let sql = "SELECT id, sealed, expires_at FROM acme_challenges WHERE expires_at > ?1";
        self.with("responses to challenges", |connection| {
            connection.all(sql, values![now], |row| {
                Ok(AcmeChallengesRow {
                    id: row.get(0)?,
                    sealed: row.get(1)?,
                    expires_at: row.get(2)?,
                })
            })
        })
    }
}
