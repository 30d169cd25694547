//! The operations of the operator. An operation is a struct with three views: the control socket, the admin API and the command line.
//!
//! A new operation is a struct in the file of the noun, and a line of [`OPERATIONS`].

pub(crate) mod account;
mod audit_log;
pub(crate) mod cache;
mod check;
pub(crate) mod credits;
pub(crate) mod deletion;
pub(crate) mod gateway;
pub(crate) mod key;
pub(crate) mod node;
pub(crate) mod operation;
pub(crate) mod payment;
pub(crate) mod provider;
pub(crate) mod retention;
pub(crate) mod settings;
pub(crate) mod upkeep;
mod usage;

use serde_json::Value;

use self::operation::{Operation, Request};
use super::api::endpoint::{Endpoint, ListedEndpoint};

/// Every operation, in the order of the endpoints of the admin API.
static OPERATIONS: &[Listed] = &[
    Listed::api::<account::List>(),
    Listed::both::<account::Create>(),
    Listed::api::<account::Show>(),
    Listed::both::<account::Suspend>(),
    Listed::both::<account::Class>(),
    Listed::both::<account::SetCacheScope>(),
    Listed::both::<account::Export>(),
    Listed::both::<deletion::Delete>(),
    Listed::both::<account::EndPlan>(),
    Listed::api::<key::List>(),
    Listed::both::<key::Create>(),
    Listed::api::<key::Find>(),
    Listed::both::<key::Revoke>(),
    Listed::api::<credits::Show>(),
    Listed::api::<credits::Book>(),
    Listed::socket::<credits::Grant>(),
    Listed::socket::<credits::Correct>(),
    Listed::api::<usage::Show>(),
    Listed::api::<payment::List>(),
    Listed::both::<payment::Close>(),
    Listed::both::<provider::Show>(),
    Listed::both::<cache::Show>(),
    Listed::both::<cache::Purge>(),
    Listed::both::<settings::Diff>(),
    Listed::both::<settings::Reload>(),
    Listed::both::<retention::Retain>(),
    Listed::api::<node::List>(),
    Listed::both::<node::Recover>(),
    Listed::api::<check::Audit>(),
    Listed::api::<check::Doctor>(),
    Listed::api::<audit_log::List>(),
    Listed::socket::<gateway::Show>(),
    Listed::socket::<gateway::Upgrade>(),
    Listed::socket::<upkeep::Complete>(),
];

/// The views of an operation.
struct Listed {
    socket: Option<ListedChange>,
    api: Option<ListedEndpoint>,
}

/// An operation of the control socket.
struct ListedChange {
    name: &'static str,
    read: fn(Value) -> serde_json::Result<Box<dyn Request>>,
}

impl ListedChange {
    const fn of<O: Operation>() -> ListedChange {
        ListedChange {
            name: O::NAME,
            read: |arguments| Ok(Box::new(serde_json::from_value::<O>(arguments)?)),
        }
    }
}

impl Listed {
    const fn both<O: Operation + Endpoint>() -> Listed {
        Listed {
            socket: Some(ListedChange::of::<O>()),
            api: Some(ListedEndpoint::of::<O>()),
        }
    }

    const fn socket<O: Operation>() -> Listed {
        Listed {
            socket: Some(ListedChange::of::<O>()),
            api: None,
        }
    }

    const fn api<E: Endpoint>() -> Listed {
        Listed {
            socket: None,
            api: Some(ListedEndpoint::of::<E>()),
        }
    }
}

/// The endpoints of the admin API.
pub(super) fn endpoints() -> impl Iterator<Item = &'static ListedEndpoint> {
    OPERATIONS.iter().filter_map(|listed| listed.api.as_ref())
}

/// The operation of a line of the control socket.
///
/// # Errors
///
/// When the line is not an object, `change` is not an operation, or the remaining members are not the operation's arguments.
pub(super) fn read(line: &[u8]) -> serde_json::Result<Box<dyn Request>> {
    use serde::de::Error as _;
    let mut arguments: serde_json::Map<String, Value> = serde_json::from_slice(line)?;
    let name = match arguments.remove("change") {
        Some(Value::String(name)) => name,
        _ => return Err(serde_json::Error::missing_field("change")),
    };
    let changes = || {
        OPERATIONS
            .iter()
            .filter_map(|listed| listed.socket.as_ref())
    };
    let Some(found) = changes().find(|change| change.name == name) else {
        let names: Vec<&str> = changes().map(|change| change.name).collect();
        let known = tollgate_filter::settings::words(&names);
        let message = format!("unknown change `{name}`, it is none of {known}");
        return Err(serde_json::Error::custom(message));
    };
    (found.read)(arguments.into())
}

#[cfg(test)]
mod tests {
    use tollgate_clock::Timestamp;

    use super::operation::{Applied, Done, read_output, request_line};
    use super::*;

    const NAMES: [&str; 21] = [
        "account_cache_scope",
        "account_class",
        "account_create",
        "account_delete",
        "account_end_plan",
        "account_export",
        "account_suspend",
        "cache_purge",
        "cache_show",
        "credits_correct",
        "credits_grant",
        "gateway_show",
        "key_create",
        "key_revoke",
        "node_recover",
        "payment_close",
        "providers_show",
        "retention_run",
        "settings_diff",
        "settings_reload",
        "upgrade",
    ];

    fn text(json: serde_json::Result<Vec<u8>>) -> String {
        String::from_utf8(json.expect("plain data")).expect("JSON is text")
    }

    /// A command of an earlier release works with the gateway, and a gateway of an earlier release works with the command.
    #[test]
    fn requests_have_the_form_of_earlier_releases() {
        let changes = OPERATIONS.iter().filter_map(|one| one.socket.as_ref());
        let names: Vec<&str> = changes.map(|change| change.name).collect();
        for name in NAMES {
            let count = names.iter().filter(|one| **one == name).count();
            assert_eq!(count, 1, "{name}");
        }
        let lines = [
            (
                text(request_line(&account::Create {
                    emails: vec!["a@example.net".to_owned()],
                    phones: Vec::new(),
                    class: None,
                    cache_scope: None,
                })),
                r#"{"change":"account_create","emails":["a@example.net"],"phones":[],"class":null,"cache_scope":null}"#,
            ),
            (
                text(request_line(&key::Create {
                    account: "acct_1".to_owned(),
                    name: "n".to_owned(),
                    scopes: Vec::new(),
                    models: Vec::new(),
                    spend_max: None,
                    spend_period: None,
                    expires_at: Some(Timestamp::from_micros(7)),
                })),
                r#"{"change":"key_create","account":"acct_1","name":"n","scopes":[],"models":[],"spend_max":null,"spend_period":null,"expires_at":7}"#,
            ),
            (
                text(request_line(&cache::Show {})),
                r#"{"change":"cache_show"}"#,
            ),
            (
                text(request_line(&gateway::Upgrade { program: None })),
                r#"{"change":"upgrade","program":null}"#,
            ),
        ];
        for (line, wanted) in lines {
            assert_eq!(line, format!("{wanted}\n"));
            let request = read(line.as_bytes());
            assert!(request.is_ok(), "{line}: {request:?}");
        }
        for line in [
            r#"{"change":"unknown"}"#,
            r#"{"change":"cache_show","more":1}"#,
            r#"{"key":"key_1"}"#,
            r#"{"change":"key_revoke"}"#,
            "[]",
        ] {
            assert!(read(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn answers_have_the_form_of_earlier_releases() {
        let booking = credits::Booking {
            operation: "o".to_owned(),
            repeated: false,
            available: "1.5".to_owned(),
        };
        let retained = retention::Retained {
            exported: None,
            is_elsewhere: true,
        };
        let answers = [
            (
                Applied::of::<credits::Grant>(booking),
                r#"{"ok":{"applied":"credits","operation":"o","repeated":false,"available":"1.5"}}"#,
            ),
            (
                Applied::of::<key::Revoke>(Done {}),
                r#"{"ok":{"applied":"done"}}"#,
            ),
            (
                Applied::of::<retention::Retain>(retained),
                r#"{"ok":{"applied":"retained","exported":null,"is_elsewhere":true}}"#,
            ),
        ];
        for (applied, wanted) in answers {
            assert_eq!(text(applied.to_json()), wanted);
        }
        let read = |applied: &str| {
            let applied = serde_json::from_str(applied).expect("JSON");
            read_output::<cache::Purge>(applied).map(|purged| purged.removed)
        };
        assert_eq!(read(r#"{"applied":"purged","removed":7}"#), Some(7));
        assert_eq!(read(r#"{"applied":"done"}"#), None);
    }
}
