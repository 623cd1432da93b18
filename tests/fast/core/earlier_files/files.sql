BEGIN TRANSACTION;
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    document TEXT NOT NULL
);
INSERT INTO "batches" VALUES(1,'batch_1','project-a',0,'{"id": "batch_1", "project_id": "project-a", "endpoint": "/v1/completions", "input_file_id": "file-000000000000000000000001", "created_at": 1700000000, "expires_at": 1700086400, "caller": {"subject_id": "sub-a", "subject_name": "a", "tenant_id": "tenant-a", "home_project_id": "project-a", "projects": ["project-a"], "proof": ""}, "metadata": {}, "state": "completed", "model": "", "times": {}, "total": 0, "completed": 0, "failed": 0, "input_bytes": 0, "result_bytes": 0, "output_file_id": "", "error_file_id": "", "errors": []}');
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    created_at INTEGER NOT NULL
);
INSERT INTO "files" VALUES(1,'file-000000000000000000000001','project-a','x.jsonl','batch',3,'ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356',1795398265);
CREATE INDEX files_of_project ON files (project_id, number);
CREATE INDEX batches_of_project ON batches (project_id, number);
CREATE INDEX open_batches ON batches (project_id) WHERE is_open;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('files',1);
INSERT INTO "sqlite_sequence" VALUES('batches',1);
COMMIT;
PRAGMA user_version = 1;
