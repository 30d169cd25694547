//! What nodes know of each other's settings.

use std::sync::Arc;

use tollgate_store::{OtherSettings, Store};
use tollgate_testing::Postgres;

use super::nodes::node;
use super::sent::until;

/// A node learns of the others with the renewal of its lease.
#[test]
fn nodes_know_which_of_them_have_other_settings_and_which_are_newer() {
    let url = Postgres::shared().database();
    let database = url.rsplit('/').next().expect("a name");
    let run = |sql: &str| Postgres::shared().run(database, sql);
    let other = |node: &str, are_newer| {
        vec![OtherSettings {
            node: node.to_owned(),
            are_newer,
        }]
    };
    // Each look asks the server.
    let becomes = |store: &Arc<dyn Store>, expected: Vec<OtherSettings>| {
        until("others are found", || {
            run("SELECT 1");
            store.other_settings() == expected
        });
    };
    let of_a = "SELECT epoch, digest, since FROM node_settings s WHERE EXISTS (SELECT 1 FROM nodes WHERE id = s.node_id AND name = 'a')";
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    a.record_settings("1-one");
    b.record_settings("1-one");
    until("both are recorded", || {
        run("SELECT count(*) FROM node_settings") == "2"
    });
    b.record_settings("1-two");
    becomes(&a, other("b", true));
    becomes(&b, other("a", false));

    let before = run(of_a);
    a.close();
    becomes(&b, vec![]);
    // It starts again with the settings that it had, which are no newer by that.
    let again = node(&url, "a");
    again.record_settings("1-one");
    becomes(&b, other("a", false));
    let after = run(of_a);
    let parts = |row: &str| {
        row.split_once('|')
            .map(|(epoch, rest)| (epoch.to_owned(), rest.to_owned()))
    };
    let (earlier, before) = parts(&before).expect("a row");
    let (later, after) = parts(&after).expect("a row");
    assert_ne!(earlier, later);
    assert_eq!(before, after, "since when it has had them");

    // As where it was started as an earlier release, which records nothing.
    run("UPDATE node_settings SET epoch = epoch - 1 WHERE digest = '1-one'");
    becomes(&b, vec![]);
    again.record_settings("1-two");
    until("it has those of the other", || {
        run("SELECT count(*) FROM node_settings WHERE digest = '1-two'") == "2"
    });
    becomes(&again, vec![]);
    becomes(&b, vec![]);
    again.close();
    b.close();
}
