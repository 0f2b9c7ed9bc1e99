mod golden;
mod properties;
