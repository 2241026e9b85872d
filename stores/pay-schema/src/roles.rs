//! The two roles: that they are there, and that they are fit to be held apart.

use crate::PaySchema;
use lock_api::StoreError;
use pg_kit::{Connector, describe, unavailable};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

/// How long making the roles may take.
const WITHIN: Duration = Duration::from_secs(30);

/// Makes the roles that are missing, with LOGIN and no password; the access's user needs CREATEROLE. Answers the names of
/// those that were made.
///
/// # Errors
/// [`StoreError::Unavailable`] naming what cannot be.
pub async fn create_roles(options: &PaySchema) -> Result<Vec<String>, StoreError> {
    options.check()?;
    let connector = Connector::new(&options.access)?;
    timeout(WITHIN, async {
        let (client, io) = connector.connect_alone().await?;
        let made = make(&client, options).await;
        drop(client);
        drop(io.await);
        made
    })
    .await
    .unwrap_or_else(|_| Err(unavailable("the roles were not made in time")))
}

async fn make(client: &Client, options: &PaySchema) -> Result<Vec<String>, StoreError> {
    let mut made = Vec::new();
    for role in [&options.payment_role, &options.rail_role] {
        if attributes(client, role).await?.is_some() {
            continue;
        }
        match client.batch_execute(&statement(role)).await {
            Ok(()) => made.push(role.clone()),
            // Somebody else was quicker.
            Err(error) if is_duplicate(&error) => {}
            Err(error) => return Err(unavailable(format!("making the role {role}: {}", describe(&error)))),
        }
    }
    Ok(made)
}

fn is_duplicate(error: &Error) -> bool {
    // Two at once: the one that waits meets the catalogue's unique key instead of the role.
    error
        .code()
        .is_some_and(|state| matches!(state.code(), "42710" | "23505"))
}

/// The statement that makes a role.
fn statement(role: &str) -> String {
    format!("CREATE ROLE \"{role}\" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE")
}

/// Whether a role is a superuser; none where there is no such role.
async fn attributes(client: &Client, role: &str) -> Result<Option<bool>, StoreError> {
    client
        .query_typed(
            "SELECT rolsuper FROM pg_roles WHERE rolname = $1",
            &[(&role, Type::TEXT)],
        )
        .await
        .map(|rows| rows.first().map(|row| row.get(0)))
        .map_err(|error| unavailable(format!("looking for the role {role}: {}", describe(&error))))
}

/// Refuses roles that are missing, or that no missing right would hold back: a superuser, the schema's owner, a member of
/// the other role or of the owner.
pub(crate) async fn check(client: &Client, options: &PaySchema) -> Result<(), StoreError> {
    let (payment, rail) = (&options.payment_role, &options.rail_role);
    for role in [payment, rail] {
        match attributes(client, role).await? {
            None => {
                return Err(unavailable(format!(
                    "the role {role} is missing: {}; or dlock migrate --create-roles",
                    statement(role)
                )));
            }
            Some(true) => {
                return Err(unavailable(format!(
                    "the role {role} is a superuser, whom no right holds back"
                )));
            }
            Some(false) => {}
        }
    }
    let rows = client
        .query_typed(
            "SELECT a.rolname, b FROM pg_roles a, unnest(ARRAY[$1, $2, current_user::text]) b
              WHERE a.rolname IN ($1, $2) AND a.rolname <> b AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = b)
                AND pg_has_role(a.rolname, b, 'MEMBER')
             UNION ALL SELECT current_user::text, current_user::text WHERE current_user IN ($1, $2)",
            &[(payment, Type::TEXT), (rail, Type::TEXT)],
        )
        .await
        .map_err(|error| unavailable(format!("looking at the roles: {}", describe(&error))))?;
    match rows.first() {
        None => Ok(()),
        Some(row) => {
            let (role, other): (String, String) = (row.get(0), row.get(1));
            Err(unavailable(format!(
                "the role {role} may act as {other}: the owner and the two fence points are three roles, none a member of \
                 another"
            )))
        }
    }
}
