//! A table of PostgreSQL in a schema of its own, with the fence kit's trigger or without, and a journal that tells in
//! which order its rows were written.

use super::service::Effect;
use super::{Fence, key};
use crate::stack::RunError;
use tokio_postgres::{Client, Config, NoTls};

/// The table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// How a worker reaches it.
    pub(super) url: String,
    server: String,
    schema: String,
}

fn failed(what: &str) -> impl FnOnce(tokio_postgres::Error) -> RunError {
    move |error| {
        let detail = error.as_db_error().map(|error| error.message().to_owned());
        RunError::Other(format!("{what}: {}", detail.unwrap_or_else(|| error.to_string())))
    }
}

async fn connect(url: &str, schema: Option<&str>) -> Result<Client, RunError> {
    let mut config: Config = url.parse().map_err(failed("reading the database's URL"))?;
    if let Some(schema) = schema {
        config.options(format!("-c search_path={schema}"));
    }
    let (client, connection) = config.connect(NoTls).await.map_err(failed("reaching the database"))?;
    drop(tokio::task::spawn_local(connection));
    Ok(client)
}

impl Table {
    /// Makes it, with a row for each of `keys` keys; `install` is the kit's own script.
    pub(super) async fn make(
        server: &str,
        schema: &str,
        keys: u64,
        fence: Fence,
        install: &str,
    ) -> Result<Self, RunError> {
        let client = connect(server, None).await?;
        let script = format!("CREATE SCHEMA {schema}");
        client.batch_execute(&script).await.map_err(failed("making a schema"))?;
        let client = connect(server, Some(schema)).await?;
        client
            .batch_execute(
                "CREATE TABLE account (id text PRIMARY KEY, n bigint NOT NULL, token bigint NOT NULL);
                 CREATE TABLE journal (seq bigserial PRIMARY KEY, id text NOT NULL, token bigint NOT NULL)",
            )
            .await
            .map_err(failed("making the table"))?;
        for n in 0..keys {
            let row = "INSERT INTO account VALUES ($1, 0, 0)";
            let made = client.execute(row, &[&key(n)]).await;
            made.map_err(failed("filling the table"))?;
        }
        client
            .batch_execute(
                "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN INSERT INTO journal (id, token) VALUES (NEW.id, NEW.token); RETURN NULL; END $$;
                 CREATE TRIGGER note AFTER UPDATE ON account FOR EACH ROW EXECUTE FUNCTION note()",
            )
            .await
            .map_err(failed("making the journal"))?;
        if fence == Fence::On {
            client
                .batch_execute(install)
                .await
                .map_err(failed("installing the fence kit"))?;
            let fenced = "SELECT dlock_fence_table('account', '', 'id')";
            client
                .batch_execute(fenced)
                .await
                .map_err(failed("fencing the table"))?;
        }
        let joint = if server.contains('?') { '&' } else { '?' };
        Ok(Self {
            url: format!("{server}{joint}options=-csearch_path%3D{schema}"),
            server: server.to_owned(),
            schema: schema.to_owned(),
        })
    }

    /// What was written, in its order: a row's lock is held from its write to its commit.
    pub(super) async fn effects(&self) -> Result<Vec<Effect>, RunError> {
        let client = connect(&self.server, Some(&self.schema)).await?;
        let rows = client
            .query("SELECT id, token FROM journal ORDER BY seq", &[])
            .await
            .map_err(failed("reading the journal"))?;
        let effect = |row: &tokio_postgres::Row| (row.get(0), u64::try_from(row.get::<_, i64>(1)).unwrap_or(0));
        Ok(rows.iter().map(effect).collect())
    }

    /// Takes it away.
    pub(super) async fn drop_schema(&self) -> Result<(), RunError> {
        let client = connect(&self.server, None).await?;
        let script = format!("DROP SCHEMA {} CASCADE", self.schema);
        client
            .batch_execute(&script)
            .await
            .map_err(failed("dropping the schema"))
    }
}
