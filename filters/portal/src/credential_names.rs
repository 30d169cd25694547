//! Display names of the credentials of an account.

use std::collections::HashMap;

use tollgate_money::{AccountId, CredentialId};
use tollgate_pages::format;
use tollgate_store::{CredentialKind, CredentialRow, ReadError, Reader};

/// Display names of the credentials of an account, for usage and statement pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct CredentialNames {
    names: HashMap<CredentialId, String>,
}

impl CredentialNames {
    /// Reads the names. Blocks on disk I/O.
    pub(crate) fn read(read: &Reader, account: AccountId) -> Result<CredentialNames, ReadError> {
        let clients = read.oauth_client_names(account)?;
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

    /// The name of the credential that sent a request.
    pub(crate) fn of(&self, credential: Option<CredentialId>) -> &str {
        let known = credential.and_then(|id| self.names.get(&id));
        // Expired tokens are deleted after a while.
        known.map_or("an app, ended", String::as_str)
    }
}

/// Display name of a credential; `client` is the registered name of its OAuth client.
fn display_name(row: &CredentialRow, client: Option<&str>) -> String {
    let made = &row.made;
    let (is_of_app, label) = (made.client_id.is_some(), made.label.as_deref());
    let name = match made.kind {
        CredentialKind::ApiKey => label.unwrap_or("a key without a name"),
        _ if is_of_app => client.unwrap_or("an app without a name"),
        _ => "Sandbox",
    };
    format::single_line(name)
}
