BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE head (
	id INTEGER NOT NULL, 
	appends BIGINT NOT NULL, 
	position BIGINT NOT NULL, 
	jobs BIGINT NOT NULL, 
	lease BIGINT NOT NULL, 
	holder TEXT NOT NULL, 
	url TEXT NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "head" VALUES(1,2,3,0,4,'a','http://127.0.0.1:8265',100.0);
CREATE TABLE journal (
	position INTEGER NOT NULL, 
	now DOUBLE NOT NULL, 
	lease BIGINT NOT NULL, 
	facts TEXT NOT NULL, 
	decisions TEXT NOT NULL, 
	PRIMARY KEY (position)
);
INSERT INTO "journal" VALUES(0,0.5,4,'[{"type":"JobSubmitted","spec":{"id":"a","roles":[{}],"owner":"ann"}}]','[]');
INSERT INTO "journal" VALUES(1,1.5,4,'[{"type":"Woke"}]','[{"type":"WakeAt","at":60.0}]');
CREATE TABLE snapshots (
	position INTEGER NOT NULL, 
	now DOUBLE NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (position)
);
INSERT INTO "snapshots" VALUES(1,0.5,'{"events":1}');
COMMIT;
