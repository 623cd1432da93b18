BEGIN TRANSACTION;
CREATE TABLE hours (
        hour INTEGER NOT NULL,
        tenant_id TEXT NOT NULL,
        project_id TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        deployment_id TEXT NOT NULL,
        model_name TEXT NOT NULL,
        input_price INTEGER NOT NULL,
        cached_input_price INTEGER NOT NULL,
        output_price INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        estimated_requests INTEGER NOT NULL,
        input INTEGER NOT NULL,
        cached_input INTEGER NOT NULL,
        output INTEGER NOT NULL,
        PRIMARY KEY (
            hour, project_id, subject_id, deployment_id, model_name, input_price, cached_input_price,
            output_price
        )
    ) WITHOUT ROWID;
INSERT INTO "hours" VALUES(1699999200000,'tenant-a','project-a','sub-a','dep-a','bank',2,1,6,1,0,10,0,5);
CREATE TABLE last_requests (
        deployment_id TEXT NOT NULL PRIMARY KEY,
        at INTEGER NOT NULL
    ) WITHOUT ROWID;
INSERT INTO "last_requests" VALUES('dep-a',1700000001000);
CREATE TABLE requests (
        request_id TEXT NOT NULL UNIQUE,
        tenant_id TEXT NOT NULL,
        project_id TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        deployment_id TEXT NOT NULL,
        model_name TEXT NOT NULL,
        input_price INTEGER NOT NULL,
        cached_input_price INTEGER NOT NULL,
        output_price INTEGER NOT NULL,
        estimated_input INTEGER NOT NULL,
        max_output INTEGER NOT NULL,
        started_at INTEGER NOT NULL,
        ended_at INTEGER,
        input INTEGER,
        cached_input INTEGER,
        output INTEGER,
        outcome TEXT,
        is_estimated INTEGER
    );
INSERT INTO "requests" VALUES('req_2','tenant-a','project-a','sub-a','dep-a','bank',2,1,6,10,20,1700000001000,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE spent (
        project_id TEXT NOT NULL,
        month TEXT NOT NULL,
        amount TEXT NOT NULL,
        PRIMARY KEY (project_id, month)
    ) WITHOUT ROWID;
INSERT INTO "spent" VALUES('project-a','2023-11','50');
CREATE INDEX requests_by_end ON requests (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX requests_open ON requests (started_at) WHERE ended_at IS NULL;
COMMIT;
PRAGMA user_version = 1;
