"""People: users, their one-time links, API tokens, SSH keys. A user may belong to several organisations."""

from sqlalchemy import JSON, Boolean, Column, Index, LargeBinary, String, Table, UniqueConstraint

from corral.store.tables.base import id_column, metadata, moment, refers

users = Table(
    "users",
    metadata,
    id_column(),
    Column("login", String(100), nullable=False, unique=True),
    Column("name", String(100), nullable=False),
    Column("password_hash", String(300)),
    Column("operator", Boolean, nullable=False, default=False),
    moment("created_at"),
)

links = Table(
    "links",
    metadata,
    id_column(),
    Column("secret_hash", LargeBinary(32), nullable=False, unique=True),
    Column("purpose", String(20), nullable=False),  # operator | login | invitation
    refers("user_id", "users.id", nullable=True),  # login: whose
    refers("org_id", "orgs.id", nullable=True),  # invitation: to which organisation
    Column("role", String(20)),
    Column("login", String(100)),  # invitation: the login it is meant for ("" = whoever holds it)
    refers("created_by", "users.id", nullable=True),
    moment("created_at"),
    moment("expires_at"),
    moment("used_at", nullable=True),
    moment("revoked_at", nullable=True),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    id_column(),
    refers("user_id", "users.id", index=True),
    Column("name", String(100), nullable=False),
    Column("public_id", String(20), nullable=False, unique=True),
    Column("secret_hash", LargeBinary(32), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("from_login", Boolean, nullable=False, default=False),  # made by logging in, not by name
    moment("created_at"),
    moment("expires_at", nullable=True),
    moment("revoked_at", nullable=True),
    moment("last_used_at", nullable=True),
)

ssh_keys = Table(
    "ssh_keys",
    metadata,
    id_column(),
    refers("user_id", "users.id"),
    Column("name", String(100), nullable=False),
    Column("public_key", String(9000), nullable=False),
    Column("fingerprint", String(60), nullable=False),
    moment("created_at"),
    UniqueConstraint("user_id", "name"),
    UniqueConstraint("user_id", "fingerprint"),
)
Index("ix_ssh_keys_user_id", ssh_keys.c.user_id)
