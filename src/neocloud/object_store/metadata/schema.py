"""The tables. Each migration leads from the version of its index to the next.

Keys are BLOBs in UTF-8, so they are ordered by bytes. Times are milliseconds since 1970. `bucket` is the
number of a bucket, which is never used again: usage names buckets that are gone.
"""

FIRST = """
CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE bucket (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    project_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    settings BLOB NOT NULL,
    document BLOB NOT NULL,
    forgotten_ms INTEGER
);
CREATE UNIQUE INDEX bucket_name ON bucket (name) WHERE forgotten_ms IS NULL;
CREATE TABLE content (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    refs INTEGER NOT NULL,
    size INTEGER NOT NULL,
    blob TEXT,
    data_key BLOB,
    inline BLOB
);
CREATE UNIQUE INDEX content_blob ON content (blob) WHERE blob IS NOT NULL;
CREATE TABLE piece (
    content INTEGER NOT NULL,
    start INTEGER NOT NULL,
    size INTEGER NOT NULL,
    source INTEGER NOT NULL,
    source_start INTEGER NOT NULL,
    PRIMARY KEY (content, start)
) WITHOUT ROWID;
CREATE TABLE object_part (
    content INTEGER NOT NULL,
    number INTEGER NOT NULL,
    start INTEGER NOT NULL,
    size INTEGER NOT NULL,
    etag TEXT NOT NULL,
    checksum TEXT,
    modified_ms INTEGER NOT NULL,
    PRIMARY KEY (content, number)
) WITHOUT ROWID;
CREATE TABLE version (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    bucket INTEGER NOT NULL,
    key BLOB NOT NULL,
    version_id TEXT NOT NULL,
    is_null INTEGER NOT NULL,
    is_latest INTEGER NOT NULL,
    is_marker INTEGER NOT NULL,
    size INTEGER NOT NULL,
    etag TEXT NOT NULL,
    modified_ms INTEGER NOT NULL,
    noncurrent_ms INTEGER,
    class TEXT NOT NULL,
    content INTEGER,
    part_count INTEGER NOT NULL,
    checksum TEXT,
    attributes BLOB NOT NULL,
    retention_mode TEXT,
    retention_ms INTEGER,
    legal_hold INTEGER NOT NULL,
    customer_key_md5 TEXT NOT NULL
);
CREATE UNIQUE INDEX version_key ON version (bucket, key, seq DESC, is_null);
CREATE UNIQUE INDEX version_listed ON version (bucket, key) WHERE is_latest = 1 AND is_marker = 0;
CREATE UNIQUE INDEX version_id ON version (version_id) WHERE is_null = 0;
CREATE TABLE upload (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    bucket INTEGER NOT NULL,
    key BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    class TEXT NOT NULL,
    attributes BLOB NOT NULL,
    retention_mode TEXT,
    retention_ms INTEGER,
    legal_hold INTEGER NOT NULL,
    algorithm TEXT,
    checksum_type TEXT NOT NULL,
    customer_key_md5 TEXT NOT NULL
);
CREATE INDEX upload_key ON upload (bucket, key, number);
CREATE TABLE part (
    upload INTEGER NOT NULL,
    number INTEGER NOT NULL,
    content INTEGER NOT NULL,
    size INTEGER NOT NULL,
    etag TEXT NOT NULL,
    modified_ms INTEGER NOT NULL,
    checksum TEXT,
    PRIMARY KEY (upload, number)
) WITHOUT ROWID;
CREATE TABLE completed (
    upload_id TEXT PRIMARY KEY,
    bucket INTEGER NOT NULL,
    key BLOB NOT NULL,
    seq INTEGER NOT NULL,
    completed_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE held (
    bucket INTEGER NOT NULL,
    class TEXT NOT NULL,
    kind TEXT NOT NULL,
    number INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, class, kind)
) WITHOUT ROWID;
CREATE TABLE stored_hour (
    bucket INTEGER NOT NULL,
    class TEXT NOT NULL,
    kind TEXT NOT NULL,
    hour INTEGER NOT NULL,
    byte_ms TEXT NOT NULL,
    PRIMARY KEY (bucket, class, kind, hour)
) WITHOUT ROWID;
CREATE TABLE counted_hour (
    bucket INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    sku TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (bucket, hour, sku)
) WITHOUT ROWID;
CREATE TABLE garbage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    content INTEGER NOT NULL,
    blob TEXT NOT NULL
)
"""
IMAGES = """
CREATE TABLE repository (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    bucket INTEGER NOT NULL,
    name TEXT NOT NULL
);
CREATE UNIQUE INDEX repository_name ON repository (bucket, name);
CREATE TABLE repository_blob (
    bucket INTEGER NOT NULL,
    digest TEXT NOT NULL,
    repository INTEGER NOT NULL,
    refs INTEGER NOT NULL,
    used_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, digest, repository)
) WITHOUT ROWID;
CREATE INDEX repository_blob_unused ON repository_blob (used_ms) WHERE refs = 0;
CREATE TABLE manifest (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    bucket INTEGER NOT NULL,
    repository INTEGER NOT NULL,
    digest TEXT NOT NULL,
    media_type TEXT NOT NULL,
    artifact_type TEXT NOT NULL,
    subject TEXT,
    size INTEGER NOT NULL,
    image_bytes INTEGER NOT NULL,
    annotations BLOB NOT NULL,
    parents INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
);
CREATE UNIQUE INDEX manifest_digest ON manifest (bucket, digest, repository);
CREATE INDEX manifest_image ON manifest (bucket) WHERE parents = 0;
CREATE INDEX manifest_subject ON manifest (repository, subject) WHERE subject IS NOT NULL;
CREATE TABLE manifest_reference (
    manifest INTEGER NOT NULL,
    digest TEXT NOT NULL,
    is_manifest INTEGER NOT NULL,
    PRIMARY KEY (manifest, digest, is_manifest)
) WITHOUT ROWID;
CREATE TABLE tag (
    repository INTEGER NOT NULL,
    name TEXT NOT NULL,
    manifest INTEGER NOT NULL,
    PRIMARY KEY (repository, name)
) WITHOUT ROWID;
CREATE INDEX tag_manifest ON tag (manifest)
"""
"""Tables of registries. A registry is a bucket, and its objects have their digests as keys. `refs`
counts the manifests of the repository that name a blob, `parents` the indexes that name a manifest."""
IMAGE_RULES = """
ALTER TABLE manifest ADD COLUMN released_ms INTEGER NOT NULL DEFAULT 0;
UPDATE manifest SET released_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000;
CREATE TABLE removed_images (
    bucket INTEGER PRIMARY KEY,
    total INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    shown BLOB NOT NULL
)
"""
"""`released_ms` is when a manifest lost a tag, an index that named it, or what it is about; where that is not
known, the time of this migration. `removed_images` counts what the rules of a registry removed."""
IMAGE_PACKAGES = """
CREATE TABLE image_packages (
    bucket INTEGER NOT NULL,
    digest TEXT NOT NULL,
    outcome TEXT NOT NULL,
    problem TEXT NOT NULL,
    release TEXT NOT NULL,
    packages INTEGER NOT NULL,
    sources BLOB NOT NULL,
    read_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, digest)
) WITHOUT ROWID
"""
"""Packages installed in images, as far as they were read."""
TRANSFERS = """
CREATE TABLE transfer (
    id TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    run INTEGER NOT NULL,
    phase TEXT NOT NULL,
    empty_iterations INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    error BLOB NOT NULL,
    next_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE transfer_iteration (
    transfer TEXT NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    error BLOB NOT NULL,
    start_ms INTEGER NOT NULL,
    end_ms INTEGER,
    objects INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    position BLOB NOT NULL,
    is_reported INTEGER NOT NULL,
    PRIMARY KEY (transfer, number)
) WITHOUT ROWID;
CREATE TABLE transfer_upload (
    transfer TEXT NOT NULL,
    key BLOB NOT NULL,
    source_etag TEXT NOT NULL,
    upload_id TEXT NOT NULL,
    part_size INTEGER NOT NULL,
    PRIMARY KEY (transfer, key)
) WITHOUT ROWID
"""
"""Tables of transfers: the progress of each, without any secret. `position` is the last key of the source,
without the prefix, up to which an iteration has done all; `transfer_upload` has unfinished uploads in the
destination."""
INVENTORIES = """
CREATE TABLE inventory (
    id TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    error TEXT NOT NULL,
    retry_ms INTEGER NOT NULL,
    last_start_ms INTEGER,
    last_success_ms INTEGER,
    run TEXT NOT NULL,
    settings BLOB NOT NULL,
    start_ms INTEGER NOT NULL,
    is_listed INTEGER NOT NULL,
    position_key BLOB NOT NULL,
    position_seq INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE inventory_file (
    inventory TEXT NOT NULL,
    number INTEGER NOT NULL,
    bucket_id TEXT NOT NULL,
    key BLOB NOT NULL,
    version_id TEXT NOT NULL,
    size INTEGER NOT NULL,
    md5 TEXT NOT NULL,
    PRIMARY KEY (inventory, number)
) WITHOUT ROWID
"""
"""Tables of inventories. `run` is the run in progress, or empty; it continues after the position, the last
version in the files that are written."""
LAST_ACCESS = """
ALTER TABLE version ADD COLUMN accessed_ms INTEGER;
INSERT INTO fact
    SELECT 'last-access-since', CAST(CAST(strftime('%s', 'now') AS INTEGER) * 1000 AS TEXT)
    WHERE EXISTS (SELECT 1 FROM version)
"""
"""`accessed_ms` is the last read of a version that was written, to the day. For versions that are older than
this, rules count from this migration: earlier reads are unknown."""
OBJECT_EVENTS = """
CREATE TABLE object_event (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    event BLOB NOT NULL
)
"""
"""Audit events of requests that the control plane does not have yet."""
REFERENCES = "CREATE INDEX manifest_reference_digest ON manifest_reference (digest)"
"""Index of the manifests that name a digest: a digest that a registry gets after such a manifest counts as
used.
"""
MIGRATIONS = (
    *(FIRST, IMAGES, IMAGE_RULES, IMAGE_PACKAGES, TRANSFERS, INVENTORIES, LAST_ACCESS, OBJECT_EVENTS),
    REFERENCES,
)
