//! The rows of the journal of attachments. Every statement here runs inside the caller's transaction.

use std::collections::BTreeMap;

use berth_attachment::{Entry, Goal, IntentId};
use berth_core::{Handle, Owner, Record};
use berth_ledger::{LedgerError, SqliteFailure};
use rusqlite::{Connection, params, params_from_iter};

use super::{Found, Item, Row, State};

/// A target and an item of it.
type Place<'a> = (&'a str, &'a str);

/// Which rows are read: each but the first by an index.
#[derive(Debug)]
pub(super) enum Key {
    All,
    Target(String),
    Item(String, String),
    Handle(Handle),
    Owner(Owner),
    /// A target and its holders' subject.
    Subject(String, String),
}

impl Key {
    fn condition(&self) -> (&'static str, Vec<&str>) {
        match self {
            Key::All => ("true", Vec::new()),
            Key::Target(target) => ("target = ?1", vec![target]),
            Key::Item(target, item) => ("target = ?1 AND item = ?2", vec![target, item]),
            Key::Handle(handle) => ("handle = ?1", vec![handle.as_str()]),
            Key::Owner(owner) => (
                "subject = ?1 AND part = ?2",
                vec![&owner.subject, &owner.part],
            ),
            Key::Subject(target, subject) => {
                // The unary plus: the index of owners is used, not that of targets.
                ("subject = ?2 AND +target = ?1", vec![target, subject])
            }
        }
    }
}

pub(super) fn select<I: Item>(
    connection: &Connection,
    key: &Key,
) -> Result<Vec<Found<I>>, SqliteFailure> {
    let (condition, values) = key.condition();
    let query = format!(
        "SELECT target, item, subject, part, handle, attributes, state, intent, goal
         FROM attachments WHERE {condition} ORDER BY target, item"
    );
    let mut statement = connection.prepare_cached(&query)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

fn read<I: Item>(row: &rusqlite::Row<'_>) -> Result<Found<I>, SqliteFailure> {
    let target: String = row.get(0)?;
    let text = |column: usize| row.get::<_, String>(column);
    let unreadable = |column: &str, value: &str| {
        SqliteFailure::Ledger(LedgerError::Unreadable {
            target: format!("the node's journal of {target}"),
            why: format!("column {column} holds `{value}`"),
        })
    };
    let (item, attributes, state) = (text(1)?, text(5)?, text(6)?);
    let attributes: BTreeMap<String, String> = match attributes.is_empty() {
        true => BTreeMap::new(),
        false => {
            serde_json::from_str(&attributes).map_err(|_| unreadable("attributes", &attributes))?
        }
    };
    let intent = match (
        row.get::<_, Option<String>>(7)?,
        row.get::<_, Option<String>>(8)?,
    ) {
        (None, _) => None,
        (Some(id), goal) => {
            let goal = goal.unwrap_or_default();
            let read = u128::from_str_radix(&id, 16).map_err(|_| unreadable("intent", &id))?;
            let goal = goal_of(&goal).ok_or_else(|| unreadable("goal", &goal))?;
            Some((IntentId(read), goal))
        }
    };
    let row = Row {
        holder: Record {
            owner: Owner::new(text(2)?, text(3)?),
            handle: Handle::new(text(4)?),
            attributes,
        },
        state: state_of(&state).ok_or_else(|| unreadable("state", &state))?,
        intent,
    };
    let item = item.parse().map_err(|_| unreadable("item", &item))?;
    Ok(Found { target, item, row })
}

/// Records the holder; the state of a row that is there stays.
pub(super) fn hold(
    connection: &Connection,
    (target, item): Place<'_>,
    holder: &Record,
) -> Result<(), SqliteFailure> {
    let attributes = match holder.attributes.is_empty() {
        true => String::new(),
        false => serde_json::to_string(&holder.attributes)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?,
    };
    connection
        .prepare_cached(
            "INSERT INTO attachments (target, item, subject, part, handle, attributes, state)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'held')
             ON CONFLICT (target, item) DO UPDATE SET subject = excluded.subject,
                 part = excluded.part, handle = excluded.handle, attributes = excluded.attributes",
        )?
        .execute(params![
            target,
            item,
            holder.owner.subject,
            holder.owner.part,
            holder.handle.as_str(),
            attributes
        ])?;
    Ok(())
}

pub(super) fn delete(
    connection: &Connection,
    (target, item): Place<'_>,
) -> Result<(), SqliteFailure> {
    connection
        .prepare_cached("DELETE FROM attachments WHERE target = ?1 AND item = ?2")?
        .execute([target, item])?;
    Ok(())
}

pub(super) fn delete_of_owner(
    connection: &Connection,
    (target, item): Place<'_>,
    owner: &Owner,
) -> Result<(), SqliteFailure> {
    connection
        .prepare_cached(
            "DELETE FROM attachments WHERE target = ?1 AND item = ?2 AND subject = ?3 AND part = ?4",
        )?
        .execute([target, item, &owner.subject, &owner.part])?;
    Ok(())
}

/// Applies an entry; `released` says which holder each forgotten item was released for.
pub(super) fn apply<I: Item>(
    connection: &Connection,
    target: &str,
    entry: &Entry<I>,
    released: &BTreeMap<String, Option<Record>>,
) -> Result<(), SqliteFailure> {
    match entry {
        Entry::Begin(intent) => {
            let mut begin = connection.prepare_cached(
                "INSERT INTO attachments
                     (target, item, subject, part, handle, attributes, state, intent, goal)
                 VALUES (?1, ?2, '', '', '', '', 'held', ?3, ?4)
                 ON CONFLICT (target, item) DO UPDATE SET intent = excluded.intent, goal = excluded.goal",
            )?;
            for item in &intent.items {
                let goal = text_of_goal(intent.goal);
                begin.execute(params![target, item.to_string(), hex(intent.id), goal])?;
            }
        }
        Entry::End { id, carried_out } => {
            connection
                .prepare_cached(
                    "UPDATE attachments SET intent = NULL, goal = NULL, state = CASE
                         WHEN ?3 AND goal = 'present' AND state = 'held' THEN 'present'
                         WHEN ?3 AND goal = 'absent' AND state = 'present' THEN 'held'
                         ELSE state END
                     WHERE target = ?1 AND intent = ?2",
                )?
                .execute(params![target, hex(*id), carried_out])?;
        }
        Entry::Absent { item } => set(connection, (target, &item.to_string()), "absent")?,
        Entry::Present { item } => set(connection, (target, &item.to_string()), "present")?,
        Entry::Forget { item } => {
            let item = item.to_string();
            match released.get(&item).and_then(Option::as_ref) {
                None => delete(connection, (target, &item))?,
                Some(holder) => forget(connection, (target, &item), holder)?,
            }
        }
    }
    Ok(())
}

fn set(
    connection: &Connection,
    (target, item): Place<'_>,
    state: &str,
) -> Result<(), SqliteFailure> {
    connection
        .prepare_cached(
            "INSERT INTO attachments (target, item, subject, part, handle, attributes, state)
             VALUES (?1, ?2, '', '', '', '', ?3)
             ON CONFLICT (target, item) DO UPDATE SET state = excluded.state",
        )?
        .execute([target, item, state])?;
    Ok(())
}

/// A pod that got the same item since its release has recorded itself: its row stays.
fn forget(
    connection: &Connection,
    (target, item): Place<'_>,
    holder: &Record,
) -> Result<(), SqliteFailure> {
    let deleted = connection
        .prepare_cached(
            "DELETE FROM attachments WHERE target = ?1 AND item = ?2
             AND subject = ?3 AND part = ?4 AND handle = ?5",
        )?
        .execute([
            target,
            item,
            &holder.owner.subject,
            &holder.owner.part,
            holder.handle.as_str(),
        ])?;
    if deleted == 0 {
        connection
            .prepare_cached(
                "UPDATE attachments SET state = 'held' WHERE target = ?1 AND item = ?2",
            )?
            .execute([target, item])?;
    }
    Ok(())
}

fn hex(id: IntentId) -> String {
    format!("{:032x}", id.0)
}

fn text_of_goal(goal: Goal) -> &'static str {
    match goal {
        Goal::Present => "present",
        Goal::Absent => "absent",
    }
}

fn goal_of(text: &str) -> Option<Goal> {
    match text {
        "present" => Some(Goal::Present),
        "absent" => Some(Goal::Absent),
        _ => None,
    }
}

fn state_of(text: &str) -> Option<State> {
    match text {
        "held" => Some(State::Held),
        "present" => Some(State::Present),
        "absent" => Some(State::Absent),
        _ => None,
    }
}
