//! What refusals and failures say to the operator of several nodes.

use tollgate_store::postgres::{self, DatabaseUrl, NodeRole, Options};
use tollgate_store::{CommitError, RootSecret};
use tollgate_testing::Postgres;

use super::nodes::node;
use super::sent::submit;
use super::suite::support::{new_account, time};

/// The others go on: to stop them would end the service.
#[test]
fn a_node_that_is_fenced_is_to_be_started_again_and_no_other_one_stopped() {
    let url = Postgres::shared().database();
    let database = url.rsplit('/').next().expect("a name");
    let store = node(&url, "a");
    Postgres::shared().run(
        database,
        "UPDATE nodes SET epoch = epoch + 1 WHERE name = 'a'",
    );
    match submit(&store, new_account(1)).recv().expect("an answer") {
        Err(CommitError::Stopped(failure)) => {
            let text = failure.to_string();
            assert!(text.starts_with("node `a` of"), "{text}");
            assert!(text.ends_with("start it again"), "{text}");
            assert!(!text.contains("audit"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_database_that_another_kind_of_gateway_has_is_refused_with_the_key_to_set() {
    let url = Postgres::shared().database();
    let refused = |role| {
        let options = Options {
            node_name: String::from("b"),
            role,
            ..Options::new(
                DatabaseUrl::parse(&url).expect("an address"),
                time(1),
                RootSecret([7; 32]),
            )
        };
        let error = postgres::open(options).err();
        error.expect("it is refused").to_string()
    };
    let store = node(&url, "a");
    let text = refused(NodeRole::Alone);
    assert!(text.contains("set `store.node` here too"), "{text}");
    let text = refused(NodeRole::Recovery(store.node()));
    assert!(text.contains("stop it first, or leave it"), "{text}");
    store.close();
    drop(store);
    let url_options = Options::new(
        DatabaseUrl::parse(&url).expect("an address"),
        time(1),
        RootSecret([7; 32]),
    );
    let alone = postgres::open(url_options).expect("it opens");
    let text = refused(NodeRole::OneOfMany);
    assert!(text.contains("that gateway has no `store.node`"), "{text}");
    alone.close();
}
