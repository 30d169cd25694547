//! Descriptions of OAuth scopes and resources.

use tollgate_filter::{Resource, Scope};

/// The permission of a scope, and a remark.
pub(crate) fn of(scope: Scope) -> (&'static str, &'static str) {
    match scope {
        Scope::ApiModels => (
            "See models and your balance",
            "The model list and how many credits are left",
        ),
        Scope::ApiChat => (
            "Send chat requests",
            "Each answer is paid from your credits",
        ),
        Scope::ApiCompletions => (
            "Send text requests (older form)",
            "Each answer is paid from your credits",
        ),
        Scope::CommerceSubscribe => (
            "Buy or renew the Pro plan, 199 USD a month",
            "You approve a PayPal payment yourself",
        ),
        Scope::CheckoutManage => (
            "Buy the Pro plan by a checkout, 199 USD a month",
            "You approve a PayPal payment yourself",
        ),
        Scope::McpAndroid => (
            "Set up and command your Android devices",
            "One device is free for each account",
        ),
        Scope::McpChat => ("Use your chats", "Read them, and write in your name"),
        Scope::McpProjects => ("Use your projects", "Read them, and change them"),
        Scope::McpDevices => ("Use your devices", "See them, and command them"),
    }
}

/// The resource to which the permission is limited.
pub(crate) fn at(resource: Option<Resource>) -> &'static str {
    match resource {
        Some(Resource::Api) => "This holds at the completions API and nowhere else.",
        Some(Resource::Mcp) => "This holds at the MCP server and nowhere else.",
        Some(Resource::McpAndroid) => "This holds at the Android MCP server and nowhere else.",
        None => "",
    }
}
