//! Charges of keys, as counted by spending caps: in the month in which a request began.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, SpendingCap};

use super::records::RecordQuery;
use crate::allotment::{CapShares, KeyCap, NodeCap, SPENT_BEFORE};
use crate::commit_id;
use crate::engine::{Credentials, DayRange, JournalRows, RowError, Sql, damaged_commit};
use crate::entries::{Body, DecodeError};
use crate::tables;

/// No request takes longer: the greatest lifetime of a hold.
const REQUEST_MAX: Duration = Duration::from_secs(86_400);

/// Number of commits read after a node's removed commits: their times bound the times of the removed commits.
const NEXT: usize = 16;

/// Charges of keys in unposted commits: node, month and sum.
pub(crate) type UnpostedCharges = HashMap<CredentialId, Vec<(i64, Month, i64)>>;

/// The account of a credential, and its cap.
pub(crate) fn owner_and_cap(
    sql: &dyn Sql,
    id: CredentialId,
) -> Result<Option<(AccountId, Option<SpendingCap>)>, RowError> {
    let mut found = None;
    tables::credentials::each(sql, Credentials::WithId(id), &mut |row| {
        found = Some((row.made.account, row.made.spending_cap));
    })?;
    Ok(found)
}

/// The cap in force, if its kind of period matches.
pub(crate) fn in_force(cap: KeyCap, set: Option<SpendingCap>) -> Option<Micros> {
    let set = set.filter(|set| (set.period == CapPeriod::Total) == cap.month.is_none());
    set.map(|set| set.max)
}

/// Visits the charges of a commit by key, with the month in which the request began.
pub(crate) fn each_charge(
    body: &[u8],
    each: &mut dyn FnMut(CredentialId, i64, Month),
) -> Result<(), DecodeError> {
    for record in Body::read(body)?.records() {
        let record = record?;
        if record.is_owner_visible()
            && let Some(used) = record.part()?.usage()
            && let Some(credential) = used.usage.credential
        {
            let began_in = Month::of(used.operation.began_at());
            each(credential, used.cost.get(), began_in);
        }
    }
    Ok(())
}

/// The charges of keys in unposted commits.
pub(crate) fn unposted_charges(sql: &dyn Sql) -> Result<UnpostedCharges, RowError> {
    let mut found = HashMap::new();
    tables::journal::bodies(sql, JournalRows::Unposted, &mut |id, body| {
        let (node, ..) = commit_id::numbers(id);
        each_charge(body, &mut |credential, charged, began_in| {
            let sum = found.entry((credential, node, began_in)).or_insert(0);
            *sum += charged;
        })
        .map_err(damaged_commit(id))
    })?;
    let mut charges = UnpostedCharges::default();
    for ((credential, node, month), charged) in found {
        let of_credential = charges.entry(credential).or_default();
        of_credential.push((node, month, charged));
    }
    Ok(charges)
}

/// The unposted charges that count against a cap, by node.
pub(crate) fn unposted_of_cap(charges: &UnpostedCharges, cap: KeyCap) -> Vec<(i64, i64)> {
    let of_credential = charges.get(&cap.credential).into_iter().flatten();
    of_credential
        .filter(|(_, began_in, _)| cap.counts(*began_in))
        .map(|(node, _, charged)| (*node, *charged))
        .collect()
}

/// Posted charges that count against a cap.
pub(crate) fn posted(sql: &dyn Sql, account: AccountId, cap: KeyCap) -> Result<i64, RowError> {
    let (from, to) = match cap.month {
        None => (Timestamp::MIN, Timestamp::MAX),
        Some(month) => (month.start(), month.next().start()),
    };
    let mut sum = 0_i64;
    tables::usage_days::read(sql, DayRange::Of { account, from, to }, &mut |_, day| {
        if day.credential == Some(cap.credential) {
            sum = sum.saturating_add(day.cost.get());
        }
    })?;
    // The totals of days have a charge in the month of the charge.
    if let Some(month) = cap.month {
        sum -= of_another_month(sql, account, cap, month)?;
        sum += of_another_month(sql, account, cap, month.next())?;
    }
    Ok(sum)
}

/// Posted charges of a key in a month for requests that began in an earlier month. For the cap's month: the charges that the cap does not
/// count. For the next month: the charges that the cap counts.
fn of_another_month(
    sql: &dyn Sql,
    account: AccountId,
    cap: KeyCap,
    month: Month,
) -> Result<i64, RowError> {
    let from = month.start();
    let to = from + REQUEST_MAX;
    let is_counted = cap.month != Some(month);
    let mut sum = 0_i64;
    RecordQuery { account, from, to }.each_posted(sql, &mut |part| {
        let used = part.usage();
        let used = used.filter(|used| used.usage.credential == Some(cap.credential));
        let counts = |began_at| cap.counts(Month::of(began_at)) == is_counted;
        if let Some(used) = used.filter(|used| counts(used.operation.began_at())) {
            sum = sum.saturating_add(used.cost.get());
        }
    })?;
    Ok(sum)
}

/// Visits every cap with parts of nodes, except the caps of months with removed commits. For such a month only the totals of days and some
/// records remain. A total has a charge in the month of the charge; only a record has the month in which the request began.
pub(crate) fn shares(sql: &dyn Sql, each: &mut dyn FnMut(CapShares)) -> Result<(), RowError> {
    let mut nodes = vec![SPENT_BEFORE];
    tables::marks::posted(sql, &mut |node, _| nodes.push(node))?;
    let mut caps = BTreeSet::new();
    for node in nodes {
        tables::allotment::caps_of_node(sql, node, &mut |row| {
            caps.insert((row.cap.credential, row.cap.month_number()));
        })?;
    }
    if caps.is_empty() {
        return Ok(());
    }
    let mut carried = Vec::new();
    tables::carry::nodes(sql, &mut |node| carried.push(node))?;
    let mut removed_at = Timestamp::MIN;
    for node in carried {
        // A wrong clock may have dated a removed commit into the future.
        let left = tables::journal::commits_after(sql, node.node, node.id, NEXT)?;
        let latest = left.iter().map(|commit| commit.seal.at).max();
        removed_at = removed_at.max(latest.map_or(node.at, |latest| node.at.min(latest)));
    }
    let charges = unposted_charges(sql)?;
    for (credential, month) in caps {
        let cap = KeyCap::from_numbers(credential, month);
        if cap.month.is_some_and(|month| month.start() <= removed_at) {
            continue;
        }
        let Some((account, set)) = owner_and_cap(sql, credential)? else {
            continue;
        };
        let of_cap = unposted_of_cap(&charges, cap);
        let all = tables::allotment::cap_rows(sql, cap)?;
        let own = |node| {
            let of_node = of_cap.iter().filter(|it| it.0 == node);
            of_node.map(|(_, charged)| charged).sum::<i64>()
        };
        let before = all.iter().find(|row| row.node == SPENT_BEFORE);
        let nodes: Vec<_> = all
            .iter()
            .filter(|row| row.node != SPENT_BEFORE)
            .map(|row| NodeCap {
                node: row.node,
                granted: Micros::new(row.granted),
                spent: Micros::new(row.spent),
                since: Micros::new(own(row.node)),
            })
            .collect();
        let has_row = |node| nodes.iter().any(|it| it.node == node);
        let others = of_cap.iter().filter(|(node, _)| !has_row(*node));
        each(CapShares {
            cap,
            account,
            max: in_force(cap, set),
            is_recalled: tables::allotment::recall(sql, crate::allotment::Budget::Cap(cap))?.number
                != 0,
            before: Micros::new(before.map_or(0, |row| row.granted)),
            posted: Micros::new(posted(sql, account, cap)?),
            since_elsewhere: Micros::new(others.map(|(_, charged)| charged).sum()),
            nodes,
        });
    }
    Ok(())
}
