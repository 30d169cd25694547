//! What the credentials of an account are called.

use std::collections::HashMap;

use tollgate_money::AccountId;
use tollgate_pages::format;
use tollgate_store::{CredentialId, CredentialKind, CredentialRow, Read, ReadError};

/// What the credentials of an account are called by those who look at what they did.
#[derive(Clone, Debug, Default)]
pub(crate) struct CredentialNames {
    names: HashMap<CredentialId, String>,
}

impl CredentialNames {
    /// Reads them. Waits for the disk.
    pub(crate) fn read(
        read: &dyn Read,
        account: AccountId,
        now: i64,
    ) -> Result<CredentialNames, ReadError> {
        let clients: HashMap<_, _> = read
            .oauth_grants(account, now)?
            .into_iter()
            .filter_map(|grant| Some((grant.client, grant.client_name?)))
            .collect();
        let rows = read.account_credentials(account)?;
        let names = rows.iter().map(|row| {
            let client = row.made.client_id.as_deref();
            let name = client.and_then(|client| clients.get(client).map(|name| &**name));
            (row.made.id, display_name(row, name))
        });
        Ok(CredentialNames {
            names: names.collect(),
        })
    }

    /// The name of the credential of a request.
    pub(crate) fn of(&self, credential: Option<CredentialId>) -> &str {
        let known = credential.and_then(|id| self.names.get(&id));
        // Tokens are forgotten some time after they end.
        known.map_or("an app, ended", String::as_str)
    }
}

/// What a credential is called; `client` is what the app it was given to calls itself.
fn display_name(row: &CredentialRow, client: Option<&str>) -> String {
    let made = &row.made;
    let (id, label) = (made.client_id.as_deref(), made.label.as_deref());
    let name = match (made.kind, client.or(id), label) {
        (CredentialKind::ApiKey, _, label) => label.unwrap_or("a key without a name"),
        (_, Some(client), _) => client,
        _ => "Sandbox",
    };
    format::line(name)
}
