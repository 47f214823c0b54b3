mod broken;
mod migration;
mod recovery;
mod requests;
