//! `tollgate payment`: listing and closing payments whose outcome is not proved.

use std::time::Duration;

use tollgate_clock::Timestamp;

use super::*;

#[test]
fn a_payment_that_was_refused_after_submission_is_listed_and_closed_and_a_transaction_counts_once()
{
    use tollgate_store::{AuthorizationKey, AuthorizationState::RefusedAfterSubmit};
    let workspace = Workspace::new();
    let server = workspace.serve();
    let account = workspace.word("account create --email a@example.com", "id");
    let later = Clock::system().now() + Duration::from_mins(10);
    let first = unproved(&server.store, (&account, RefusedAfterSubmit), 1, later);
    let second = unproved(
        &server.store,
        (&account, RefusedAfterSubmit),
        2,
        Timestamp::from_secs(1),
    );
    let third = unclear(&server.store, &account, 3, later);
    let listed = workspace.json("payment list");
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    let of = |name: &str| {
        let found = listed.as_array().expect("a list").iter();
        let mut found = found.filter(|one| one["payment"] == *name);
        found.next().expect("it is listed").clone()
    };
    let one = of(&first);
    for (member, wanted) in [
        ("state", "refused"),
        ("action", "resolve"),
        ("amount", "199.00"),
        ("payer", "0x0202020202020202020202020202020202020202"),
        ("note", "cut"),
    ] {
        assert_eq!(one[member], wanted, "{member}");
    }
    assert_eq!(one["nonce"], format!("0x{}", "01".repeat(32)));
    assert_eq!(one["transaction"], Value::Null);
    assert_eq!(
        (&of(&third)["state"], &of(&third)["action"]),
        (&"unclear".into(), &"wait".into())
    );
    let text = workspace.good("payment list");
    assert!(text.contains("resolve") && text.contains(&first), "{text}");
    // The payment could still settle.
    workspace
        .run(&format!("payment close {first} --not-moved"))
        .expect_err("too early");
    let hash = format!("0x{}", "ab".repeat(32));
    workspace.good(&format!("payment close {first} --paid {hash}"));
    let refused = workspace
        .run(&format!("payment close {second} --paid {hash}"))
        .expect_err("it has paid for the first one");
    assert!(
        refused.contains("has paid for another payment"),
        "{refused}"
    );
    assert!(refused.contains("`--shared-transaction`"), "{refused}");
    // Another buyer's transfer in the same transaction: the operator has seen the transfer.
    let other = workspace.word("account create --email b@example.com", "id");
    let fourth = unproved(&server.store, (&other, RefusedAfterSubmit), 4, later);
    workspace
        .run(&format!(
            "payment close {fourth} --not-moved --shared-transaction"
        ))
        .expect_err("no transaction is named");
    workspace.good(&format!(
        "payment close {fourth} --paid {hash} --shared-transaction"
    ));
    let key = AuthorizationKey {
        network: Arc::from("eip155:8453"),
        asset: [1; 20],
        payer: [2; 20],
        nonce: [4; 32],
    };
    let row = server.store.authorization(&key).expect("readable");
    let note = row.and_then(|row| row.note).expect("a note");
    assert!(note.contains("a separate transfer"), "{note}");
    let theirs = other.parse().expect("an id");
    let paid = server.store.payments_of(theirs, 9).expect("readable");
    assert_eq!(paid.len(), 1);
    workspace.good(&format!("payment close {second} --not-moved"));
    let closed = workspace.json(&format!("audit-log --subject {second}"));
    assert_eq!(closed[0]["action"], "payment_close");
    assert_eq!(closed[0]["outcome"], "done");
    assert_eq!(
        closed.as_array().map(Vec::len),
        Some(2),
        "a refusal before it: {closed}"
    );
    let paid_in = workspace.json(&format!("audit-log --subject {first} --limit 9"));
    assert_eq!(paid_in.as_array().map(Vec::len), Some(2), "{paid_in}");
    assert_eq!(paid_in[0]["detail"]["paid"], hash);
    let id = account.parse().expect("an id");
    assert_eq!(server.store.payments_of(id, 9).expect("readable").len(), 1);
    server.end();
}

/// Stores a submitted payment of an account, with an unknown outcome; returns the payment's id.
fn unclear(
    store: &Arc<dyn tollgate_store::Store>,
    account: &str,
    nonce: u8,
    ends: Timestamp,
) -> String {
    let state = tollgate_store::AuthorizationState::Unknown;
    unproved(store, (account, state), nonce, ends)
}

/// Stores a refused payment of an account, ready to be closed; returns the payment's id.
pub(super) fn unproved_payment(
    store: &Arc<dyn tollgate_store::Store>,
    account: &str,
    nonce: u8,
) -> String {
    let state = tollgate_store::AuthorizationState::RefusedAfterSubmit;
    unproved(store, (account, state), nonce, Timestamp::from_secs(1))
}

fn unproved(
    store: &Arc<dyn tollgate_store::Store>,
    (account, state): (&str, tollgate_store::AuthorizationState),
    nonce: u8,
    ends: Timestamp,
) -> String {
    use tollgate_store::{
        Admission, AuthorizationKey, AuthorizationPart, AuthorizationRow, Part, UnitOfWork, commit,
    };
    let row = AuthorizationRow {
        key: AuthorizationKey {
            network: Arc::from("eip155:8453"),
            asset: [1; 20],
            payer: [2; 20],
            nonce: [nonce; 32],
        },
        account: account.parse().expect("an id"),
        state,
        version: 0,
        digest: [3; 32],
        sealed: None,
        valid_before: ends,
        transaction: None,
        receipt: None,
        note: Some(Arc::from("cut")),
        attempts: 1,
        next_attempt_at: None,
        created_at: Timestamp::from_micros(1),
        updated_at: Timestamp::from_micros(1),
    };
    let name = tollgate_pay::x402::payment_reference(&row);
    let begin = Part::Authorization(Box::new(AuthorizationPart::Begin(row)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let begun = commit(&**store, UnitOfWork::of(begin, Admission::Normal));
    runtime.block_on(begun).expect("it is stored");
    name
}

#[test]
fn an_unclear_payment_is_closed_by_the_operator() {
    let workspace = Workspace::new();
    let server = workspace.serve();
    let account = workspace.word("account create --email a@example.com", "id");
    assert_eq!(workspace.good("payment list"), "no payment is open\n");
    let later = Clock::system().now() + Duration::from_mins(10);
    let name = unclear(&server.store, &account, 1, later);
    let listed = workspace.json("payment list");
    assert_eq!(listed[0]["payment"], *name);
    assert_eq!(listed[0]["account"], *account);
    assert!(workspace.good("payment list").contains(&name));
    // The operator states the outcome, with the transaction.
    for line in [
        format!("payment close {name}"),
        format!(
            "payment close {name} --not-moved --paid 0x{}",
            "ab".repeat(32)
        ),
        format!("payment close {name} --paid 0xab"),
        format!("payment close other --paid 0x{}", "ab".repeat(32)),
        // The payment could still be sent.
        format!("payment close {name} --not-moved"),
    ] {
        workspace.run(&line).expect_err(&line);
    }
    workspace.good(&format!(
        "payment close {name} --paid 0x{}",
        "ab".repeat(32)
    ));
    assert_eq!(workspace.json("payment list"), serde_json::json!([]));
    let id = account.parse().expect("an id");
    let plan = server.store.subscription(id).expect("readable");
    assert_eq!(
        &*plan.expect("the plan").reference,
        format!("0x{}", "ab".repeat(32))
    );
    assert_eq!(server.store.payments_of(id, 9).expect("readable").len(), 1);
    // Without a running gateway, the command writes to the database itself.
    let other = workspace.word("account create --email b@example.com", "id");
    let name = unclear(&server.store, &other, 2, Timestamp::from_secs(1));
    server.end();
    workspace.good(&format!("payment close {name} --not-moved"));
    assert_eq!(workspace.json("payment list"), serde_json::json!([]));
    let store = tollgate_store::sqlite::open_read(&workspace.folder.path().join("tollgate.db"))
        .expect("the store opens");
    let id = other.parse().expect("an id");
    assert_eq!(store.subscription(id).expect("readable"), None);
    assert_eq!(workspace.run("audit").map(|(code, _)| code), Ok(0));
}
